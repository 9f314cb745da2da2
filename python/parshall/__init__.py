"""Parshall measures the packet path of Linux hosts, with the loss and the cost of measuring.

What a notebook needs stands here: ``tcp``, ``capture``, ``path`` and ``generate`` begin to measure or to send, ``read``
and ``convert`` take a TCP log, ``write_report`` makes a report of logs.

Examples
--------
>>> import parshall
>>> with parshall.tcp("flows.arrow", port=5201):  # doctest: +SKIP
...     ...
>>> parshall.read("flows.arrow").flows  # doctest: +SKIP
"""

from typing import TYPE_CHECKING

from parshall.host.first_use import names_on_first_use

if TYPE_CHECKING:
    from parshall.instruments.capture import Capture as capture
    from parshall.instruments.generate import Generator as generate
    from parshall.instruments.path import PathProfile as path
    from parshall.instruments.tcp import TcpLog as tcp
    from parshall.instruments.tcp_log import convert as convert
    from parshall.instruments.tcp_log import read as read
    from parshall.report import write_report as write_report

__all__ = ["capture", "convert", "generate", "path", "read", "tcp", "write_report"]

__getattr__ = names_on_first_use(
    __name__,
    {
        "capture": "parshall.instruments.capture:Capture",
        "convert": "parshall.instruments.tcp_log",
        "generate": "parshall.instruments.generate:Generator",
        "path": "parshall.instruments.path:PathProfile",
        "read": "parshall.instruments.tcp_log",
        "tcp": "parshall.instruments.tcp:TcpLog",
        "write_report": "parshall.report",
    },
)
