"""CPU time by state, and the part of it that a measurement caused.

The command ``parshall cpu`` is a thin layer over this package; after ``cpusage`` and ``trimusage`` of F. Schneider,
"Performance evaluation of packet capturing systems for high-speed networks", 2005, chapter 5 and appendix A.
"""

from parshall.instruments.cpu.hooks import HookProfile, HookTime, hook_line
from parshall.instruments.cpu.profile import LongestStretch, Profile, Summary, summarise
from parshall.instruments.cpu.states import STATES, Usage, read_ticks, usage_between
from parshall.instruments.cpu.text import machine_line, read_profile, summary_lines, text_line

__all__ = [
    "STATES",
    "HookProfile",
    "HookTime",
    "LongestStretch",
    "Profile",
    "Summary",
    "Usage",
    "hook_line",
    "machine_line",
    "read_profile",
    "read_ticks",
    "summarise",
    "summary_lines",
    "text_line",
    "usage_between",
]
