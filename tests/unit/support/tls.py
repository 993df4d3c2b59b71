"""A client of a webhook on loopback, with configurable trusted CAs."""

from __future__ import annotations

import ssl

import aiohttp

from dtj.admission.server import PATH

HOST = "dtj-operator-webhook.dtj-system.svc"


async def post(port: int, authorities: bytes, body: bytes, host: str = HOST) -> tuple[int, str]:
    """Send a request on a new connection; return status and text. Raises aiohttp.ClientConnectorError."""
    trusting = ssl.create_default_context(cadata=authorities.decode())
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"https://127.0.0.1:{port}{PATH}", data=body, ssl=trusting, server_hostname=host
        ) as answer,
    ):
        return answer.status, await answer.text()


async def trusted(port: int, authorities: bytes, host: str = HOST) -> str:
    """Return an empty text if a client with these CAs accepts the server's certificate, else the error."""
    try:
        await post(port, authorities, b"{}", host)
    except aiohttp.ClientConnectorError as error:
        return str(error)
    return ""
