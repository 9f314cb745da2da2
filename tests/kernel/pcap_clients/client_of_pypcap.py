"""Captures by pypcap, which has no lengths on the wire: client_of_pypcap.py INTERFACE FILTER COUNT."""

import sys

import pcap

interface, expression, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
capture = pcap.pcap(name=interface, snaplen=200, promisc=False, timeout_ms=50)
capture.setfilter(expression)
print("ready", file=sys.stderr, flush=True)
for _, packet in capture:
    print(len(packet), bytes(packet).hex())
    count -= 1
    if not count:
        break
received, dropped, _ = capture.stats()
print(received, dropped, capture.datalink())
