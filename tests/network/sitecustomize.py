"""No test goes out: Python processes that load this file cannot connect to, or ask about, another machine.

`conftest.py` loads it for the tests themselves and puts its folder into PYTHONPATH, so that every Python that a test
starts loads it too. Whoever tries sees an unreachable network, and the attempt is noted, so that the test fails even
where the error was swallowed.
"""

import errno
import ipaddress
import os
import socket
import sys

LOG = "TORCHCAPS_TESTS_NETWORK_LOG"
OWN_NAME = socket.gethostname().partition(".")[0].lower()
CONNECTIONS = ("socket.connect", "socket.sendto", "socket.sendmsg")
LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname")


def is_here(host: object) -> bool:
    """Whether an address or a name means this machine; None means any of its addresses."""
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if not isinstance(name, str) or name.lower() in ("", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name.partition(".")[0].lower() == OWN_NAME
    if address.is_loopback or address.is_unspecified:
        return True
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as own:
        try:
            own.bind((str(address), 0))  # which only an address of this machine allows
        except OSError:
            return False
    return True


def guard(event: str, arguments: tuple) -> None:
    """An audit hook: note and refuse what leads away from this machine."""
    if event in CONNECTIONS:
        connection, address = arguments[:2]
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or not address or is_here(address[0]):
            return
        host = address[0]
    elif event in LOOKUPS and not is_here(arguments[0]):
        host = arguments[0]
    else:
        return
    if str(host).endswith(".invalid"):  # a name that nobody can have: no question about it leaves, either
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    if path := os.environ.get(LOG):
        with open(path, "a", encoding="utf-8") as log:
            log.write(f"{event} {host} by {' '.join(sys.argv)[:200]}\n")
    raise OSError(errno.ENETUNREACH, f"tests do not go out, but this one asked for {host}")


sys.addaudithook(guard)
