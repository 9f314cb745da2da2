"""A workload of the generator, as the Rust side takes it."""

REQUEST = {
    "interface": "lo",
    "seed": 1,
    "source": "10.0.0.1",
    "destination": "10.0.0.2",
    "source_port": "9",
    "destination_port": "9",
    "source_mac": "02:00:00:00:00:01",
    "destination_mac": "02:00:00:00:00:02",
    "protocol": "udp",
    "sizes": "64",
}
