"""How much of an agent one member of its fleet can take up: connections, calls, bytes that wait."""

from contextlib import suppress

MAX_CALLS = 16  # at once, for each agent of the fleet; whoever comes later is refused
MAX_STREAMS = 4  # of a connection
IDLE_S = 10  # in which a connection has to be secured, and to have a call, or it is closed
MAX_CONNECTIONS = 4096  # of all, at most half of the files that the process may open
WAITING_BYTES = 32 << 20  # of frames for a neighbour, beside two of the largest


def server_options() -> list[tuple[str, int]]:
    """What gRPC is told."""
    return [
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_connection_idle_ms", IDLE_S * 1000),
        ("grpc.server_handshake_timeout_ms", IDLE_S * 1000),
        ("grpc.max_allowed_incoming_connections", min(MAX_CONNECTIONS, open_files() // 2)),
    ]


def open_files() -> int:
    """How many files this process may open: as many as the system allows, from now on."""
    try:
        import resource
    except ImportError:  # not on this system
        return MAX_CONNECTIONS // 4
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, 4 * MAX_CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft


def waiting_bytes(max_bytes: int) -> int:
    """That may wait for a neighbour beside rows, where a message may have `max_bytes` of tensors."""
    return 2 * max_bytes + WAITING_BYTES
