"""A program in a sandbox that listens at a port, for tests of what reaches it."""

import asyncio
import base64
import hashlib
import sys

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
flooded = 0


def answer(body, more="", status="200 OK"):
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


async def websocket(head, reader, writer):
    lines = head.decode("latin-1").split("\r\n")
    key = next(line.split(": ", 1)[1] for line in lines if line.lower().startswith("sec-websocket-key"))
    accept = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        + f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
    )
    while True:
        first, length = await reader.readexactly(2)
        length &= 127
        if length == 126:
            length = int.from_bytes(await reader.readexactly(2), "big")
        mask = await reader.readexactly(4)
        data = await reader.readexactly(length)
        plain = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        if first & 15 == 8:
            return
        size = bytes([len(plain)]) if len(plain) < 126 else b"\x7e" + len(plain).to_bytes(2, "big")
        writer.write(bytes([first]) + size + plain.upper())
        await writer.drain()


async def flood(writer):
    global flooded
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    block = b"x" * 65536
    while True:
        writer.write(block)
        await writer.drain()
        flooded += len(block)


async def read_body(head, reader):
    lowered = head.lower()
    if b"transfer-encoding: chunked" in lowered:
        body = b""
        while True:
            size = int(await reader.readline(), 16)
            body += await reader.readexactly(size)
            await reader.readexactly(2)
            if size == 0:
                return body
    for line in lowered.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return await reader.readexactly(int(line.split(b":")[1]))
    return b""


async def serve(reader, writer):
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        if path == "/ws":
            await websocket(head, reader, writer)
        elif path == "/flood":
            await flood(writer)
        elif path == "/flooded":
            writer.write(answer(str(flooded).encode()))
        elif path == "/deaf":
            await asyncio.sleep(3600)
        elif path == "/moved":
            writer.write(answer(b"", "Location: /there\r\nSet-Cookie: id=1; Path=/\r\n", "302 Found"))
        elif path == "/broken":
            writer.write(b"nonsense\r\n\r\n")
        elif path == "/two-answers":
            writer.write(answer(b"first") + answer(b"second"))
        elif path == "/unasked":
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n")
        else:
            body = await read_body(head, reader)
            # Whatever came behind the request on the same connection would be here.
            try:
                rest = await asyncio.wait_for(reader.read(4096), 0.2)
            except asyncio.TimeoutError:
                rest = b""
            writer.write(answer(head + b"BODY " + str(len(body)).encode() + b" REST " + str(len(rest)).encode()))
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(serve, sys.argv[2], int(sys.argv[1]), backlog=2048)
    print("listening", flush=True)
    async with server:
        await server.serve_forever()


asyncio.run(main())
