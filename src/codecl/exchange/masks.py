"""Masks that hide what single agents add to a sum, and cancel in it.

Every two agents share a key (X25519, HKDF with SHA-256) and from it a stream of numbers (ChaCha20), which the lower one
adds and the higher one takes away, modulo 2⁶⁴. Law: the sum over all agents of a context is as without masks; that of
any fewer is uniformly random to whoever has none of their keys.
"""

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from codecl.errors import ConfigError
from codecl.exchange.base import Tensors

try:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise ConfigError("growth.pool: masked needs cryptography: pip install 'codecl[privacy]'") from error

Key = X25519PrivateKey
KEY_BYTES = 32


def new_key() -> Key:
    """For one sum alone: a key that is never used again gives masks that are never used again."""
    return X25519PrivateKey.generate()


def public(key: Key) -> bytes:
    return key.public_key().public_bytes_raw()


def is_key(public_key: bytes) -> bool:
    """Whether it is a public key that shares a secret with any other."""
    with suppress(ValueError):
        new_key().exchange(X25519PublicKey.from_public_bytes(public_key))
        return True
    return False


def masked(values: Tensors, me: int, key: Key, publics: Mapping[int, bytes], context: bytes) -> dict[str, Tensor]:
    """Whole numbers (int64) with the masks that agent `me` shares with each other one. `context`: which sum this is,
    the same for all of its agents."""
    names = sorted(values)
    sizes = [values[name].numel() for name in names]
    total = np.zeros(sum(sizes), dtype=np.uint64)
    for other, their_key in publics.items():
        if other == me:
            continue
        stream = keystream(key, their_key, context, (min(me, other), max(me, other)), len(total))
        total = total + stream if other > me else total - stream
    parts = torch.from_numpy(total.view(np.int64)).split(sizes)
    return {
        name: values[name] + part.view(values[name].shape).to(values[name].device)
        for name, part in zip(names, parts, strict=True)
    }


def keystream(key: Key, their_key: bytes, context: bytes, pair: tuple[int, int], count: int) -> np.ndarray:
    """So many numbers of 64 bits that the two of a pair alone can make."""
    secret = key.exchange(X25519PublicKey.from_public_bytes(their_key))
    about = b"codecl mask %d %d " % pair + context
    shared = HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=about).derive(secret)
    encryptor = Cipher(ChaCha20(shared, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)), dtype="<u8")
