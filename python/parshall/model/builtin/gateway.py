"""``security-gateway``: the BSD router with authentication and encryption in its protocols layer (3.7.3, 3.8.1)."""

from dataclasses import dataclass
from typing import Any

from parshall.errors import UsageError
from parshall.model.builtin.bsd import BsdRouter
from parshall.model.builtin.traffic import parameter

# us per byte at 1 GHz: 3DES from Table 3-II, (580 - 15.44) us for 1500 B at 600 MHz; DES a third of it (3.7.3).
CIPHERS_US_PER_BYTE = {"none": 0.0, "des": 0.376 * 0.6 / 3, "3des": 0.376 * 0.6}
# us at 1 GHz, inferred: the time that remains at 1.5 kpps of 1386 B with 3DES (82 us at 600 MHz).
AUTHENTICATION_US = {"none": 0.0, "ah": 82 * 0.6}


@dataclass(frozen=True, kw_only=True)
class SecurityGateway(BsdRouter):
    """A BSD router with IPsec: AH, and ESP with DES or 3DES."""

    packet_bytes: str = parameter("1386", "B", "packet lengths, one per flow")
    load_mbps: float = parameter(10.0, "Mbit/s", "offered by all flows together, in equal bit rates")
    cpu_mhz: float = parameter(650.0, "MHz", "clock of the processor, by which all its services scale")
    ip_queue: int = parameter(256, "packets", "IP input queue")
    cipher: str = parameter("3des", "", "none, des or 3des")
    authentication: str = parameter("ah", "", "none or ah")

    def protocols(self) -> list[dict[str, Any]]:
        """Return the service of the protocols layer, with IPsec."""
        for name, value, table in (
            ("cipher", self.cipher, CIPHERS_US_PER_BYTE),
            ("authentication", self.authentication, AUTHENTICATION_US),
        ):
            if value not in table:
                raise UsageError(f"{name} is {value!r}; expected {', '.join(table)}")
        packet_us = self.grain_us("ipintrq") + AUTHENTICATION_US[self.authentication]
        return self.work(packet_us, CIPHERS_US_PER_BYTE[self.cipher], self.grain_fixed_us("ipintrq"))
