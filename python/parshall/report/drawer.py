"""A process that draws: ``python -m parshall.report.drawer`` reads figures and writes them as SVG.

A request is a line of JSON, a Vega-Lite specification. An answer is a line of JSON, ``{"bytes": number}`` or
``{"error": text}``, and then so many bytes. It ends with its input.
"""

import json
import signal
import sys

import vl_convert


def main() -> None:
    """Answer each request."""
    # When the process that asks was killed, this one ends without a word.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # What draws starts while the first figure is made.
    vl_convert.vegalite_to_svg('{"mark": "point"}')
    answer: dict[str, object]
    for line in sys.stdin:
        try:
            drawing = vl_convert.vegalite_to_svg(line).encode()
            answer = {"bytes": len(drawing)}
        except (ValueError, RuntimeError) as error:
            drawing, answer = b"", {"error": str(error)}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + drawing)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
