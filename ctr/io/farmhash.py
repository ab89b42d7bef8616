"""FarmHash's Fingerprint64 of single values, in Python: what ``tf.fingerprint`` computes, without TensorFlow.

A few values are hashed in the time of one call of TensorFlow; for a column, use ``ctr.data.feature_ops.fingerprints``.
Source: FarmHash by Geoff Pike, Google (MIT license), ``farmhashna::Hash64``.
"""

import struct

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_BLOCK = 64
_two_words = struct.Struct("<2Q").unpack_from
_word = struct.Struct("<Q").unpack_from
_half_word = struct.Struct("<I").unpack_from
_block = struct.Struct("<8Q").unpack_from


def fingerprint64(text: bytes) -> int:
    """Returns the fingerprint of some bytes, from 0 to 2^64 - 1."""
    size = len(text)
    if size > 16:
        return _of_two(text, size) if size <= 32 else _of_four(text, size) if size <= 64 else _of_more(text)
    if size >= 8:
        multiplier = _K2 + size * 2 & _MASK
        a, b = _word(text)[0] + _K2 & _MASK, _word(text, size - 8)[0]
        c = (b >> 37 | b << 27 & _MASK) * multiplier + a & _MASK
        d = ((a >> 25 | a << 39 & _MASK) + b) * multiplier & _MASK
        return _mixed(c, d, multiplier)
    if size >= 4:
        first = _half_word(text)[0]
        return _mixed(size + (first << 3), _half_word(text, size - 4)[0], _K2 + size * 2 & _MASK)
    if size:
        y = text[0] + (text[size >> 1] << 8)
        z = size + (text[size - 1] << 2)
        return _folded((y * _K2 ^ z * _K0) & _MASK) * _K2 & _MASK
    return _K2


def _folded(value: int) -> int:
    return value ^ value >> 47


def _rotated(value: int, shift: int) -> int:
    value &= _MASK
    return value >> shift | value << 64 - shift & _MASK


def _mixed(one: int, other: int, multiplier: int) -> int:
    a = (one ^ other) * multiplier & _MASK
    b = (other ^ a ^ a >> 47) * multiplier & _MASK
    return (b ^ b >> 47) * multiplier & _MASK


def _of_two(text: bytes, size: int) -> int:
    """Of 17 to 32 bytes."""
    multiplier = _K2 + size * 2 & _MASK
    a, b = _two_words(text)
    d, c = _two_words(text, size - 16)
    a = a * _K1 & _MASK
    c *= multiplier
    y = _rotated(a + b, 43) + _rotated(c, 30) + d * _K2
    return _mixed(y & _MASK, a + _rotated(b + _K2, 18) + c & _MASK, multiplier)


def _of_four(text: bytes, size: int) -> int:
    """Of 33 to 64 bytes."""
    multiplier = _K2 + size * 2 & _MASK
    a, b = _two_words(text)
    e, f = _two_words(text, 16)
    last = _two_words(text, size - 32)
    d, c = _two_words(text, size - 16)
    a = a * _K2 & _MASK
    c *= multiplier
    y = _rotated(a + b, 43) + _rotated(c, 30) + d * _K2 & _MASK
    z = _mixed(y, a + _rotated(b + _K2, 18) + c & _MASK, multiplier)
    e = e * multiplier & _MASK
    g = (y + last[0]) * multiplier & _MASK
    h = (z + last[1]) * multiplier & _MASK
    made = _rotated(e + f, 43) + _rotated(g, 30) + h & _MASK
    return _mixed(made, e + _rotated(f + a, 18) + g & _MASK, multiplier)


def _of_more(text: bytes) -> int:
    """Of 65 bytes and more: blocks of 64, then the last 64 bytes, which may overlap them."""
    x, y = 81 * _K2 + _word(text)[0] & _MASK, 81 * _K1 + 113 & _MASK
    z = _folded(y * _K2 + 113 & _MASK) * _K2 & _MASK
    v, w = (0, 0), (0, 0)
    size = len(text)
    for begin in range(0, (size - 1) // _BLOCK * _BLOCK, _BLOCK):
        s = _block(text, begin)
        x = _rotated(x + y + v[0] + s[1], 37) * _K1 & _MASK
        y = _rotated(y + v[1] + s[6], 42) * _K1 & _MASK
        x ^= w[1]
        y = y + v[0] + s[5] & _MASK
        z = _rotated(z + w[0], 33) * _K1 & _MASK
        v = _weak(s[:4], v[1] * _K1, x + w[0])
        w = _weak(s[4:], z + w[1], y + s[2])
        x, z = z, x
    multiplier = _K1 + ((z & 0xFF) << 1) & _MASK
    s = _block(text, size - _BLOCK)
    first = w[0] + (size - 1 & _BLOCK - 1)
    v = (v[0] + first & _MASK, v[1])
    w = (first + v[0] & _MASK, w[1])
    x = _rotated(x + y + v[0] + s[1], 37) * multiplier & _MASK
    y = _rotated(y + v[1] + s[6], 42) * multiplier & _MASK
    x ^= w[1] * 9 & _MASK
    y = y + v[0] * 9 + s[5] & _MASK
    z = _rotated(z + w[0], 33) * multiplier & _MASK
    v = _weak(s[:4], v[1] * multiplier, x + w[0])
    w = _weak(s[4:], z + w[1], y + s[2])
    x, z = z, x
    one = _mixed(v[0], w[0], multiplier) + _folded(y) * _K0 + z & _MASK
    return _mixed(one, _mixed(v[1], w[1], multiplier) + x & _MASK, multiplier)


def _weak(words: tuple[int, ...], a: int, b: int) -> tuple[int, int]:
    a += words[0]
    b = _rotated(b + a + words[3], 21)
    c = a
    a += words[1] + words[2]
    b += _rotated(a, 44)
    return a + words[3] & _MASK, b + c & _MASK
