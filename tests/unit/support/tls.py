"""A webhook on loopback, and a client of it that trusts what it is told to."""

from __future__ import annotations

import ssl

import aiohttp

from dtj.admission.server import PATH

HOST = "dtj-operator-webhook.dtj-system.svc"


async def post(port: int, authorities: bytes, body: bytes, host: str = HOST) -> tuple[int, str]:
    """Status and text of the answer, on a connection of its own. Raises aiohttp.ClientConnectorError."""
    trusting = ssl.create_default_context(cadata=authorities.decode())
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"https://127.0.0.1:{port}{PATH}", data=body, ssl=trusting, server_hostname=host
        ) as answer,
    ):
        return answer.status, await answer.text()


async def trusted(port: int, authorities: bytes, host: str = HOST) -> str:
    """Empty where a client that trusts these CAs takes the server's certificate; else why not."""
    try:
        await post(port, authorities, b"{}", host)
    except aiohttp.ClientConnectorError as error:
        return str(error)
    return ""
