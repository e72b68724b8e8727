"""A DNS server on loopback that a test drives by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class DnsServer(asyncio.DatagramProtocol):
    """Answers from `zone`, which maps a name and a type to a time to live and records."""

    def __init__(self) -> None:
        self.zone: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self.mode = "healthy"
        self.port = 0
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if self.mode == "silent":
            return
        if self.mode == "garbage":
            self._transport.sendto(b"\xff" * 12, addr)
            return
        query = dns.message.from_wire(data)
        question = query.question[0]
        name, kind = str(question.name), dns.rdatatype.to_text(question.rdtype)
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        ttl, records = self.zone.get((name, kind), (0, []))
        if records:
            answer.answer.append(dns.rrset.from_text(name, ttl, "IN", kind, *records))
        elif name not in {known for known, _ in self.zone}:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        if self.mode == "refused":
            answer = dns.message.make_response(query)
            answer.set_rcode(dns.rcode.SERVFAIL)
        self._transport.sendto(answer.to_wire(), addr)
