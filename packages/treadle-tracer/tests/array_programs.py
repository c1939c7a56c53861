"""Expressions of NumPy on arrays a and b, the arrays, and what can be seen of a result."""

from __future__ import annotations

import warnings

import pytest
import torch

np = pytest.importorskip("numpy", "2.0")

_EXPRESSIONS = """
[operators]
a + b ; a - b ; a * b ; a / b ; a // b ; a % b ; a ** b ; a == b ; a != b ; a < b ; a <= b ; a > b ; a >= b ; a & b ; a | b ; a ^ b
b - a ; b / a ; b // a ; b % a ; b ** a ; b < a

[numbers]
a + 2 ; a + 2.5 ; a + True ; a + np.float32(3) ; a + np.int64(3) ; a + -1 ; a + 0 ; a - 2 ; a - 2.5 ; a - True ; a - np.float32(3)
a - np.int64(3) ; a - -1 ; a - 0 ; a * 2 ; a * 2.5 ; a * True ; a * np.float32(3) ; a * np.int64(3) ; a * -1 ; a * 0 ; a / 2 ; a / 2.5
a / True ; a / np.float32(3) ; a / np.int64(3) ; a / -1 ; a / 0 ; a // 2 ; a // 2.5 ; a // True ; a // np.float32(3) ; a // np.int64(3)
a // -1 ; a // 0 ; a % 2 ; a % 2.5 ; a % True ; a % np.float32(3) ; a % np.int64(3) ; a % -1 ; a % 0 ; a ** 2 ; a ** 2.5 ; a ** True
a ** np.float32(3) ; a ** np.int64(3) ; a ** -1 ; a ** 0 ; a == 2 ; a == 2.5 ; a == True ; a == np.float32(3) ; a == np.int64(3)
a == -1 ; a == 0 ; a != 2 ; a != 2.5 ; a != True ; a != np.float32(3) ; a != np.int64(3) ; a != -1 ; a != 0 ; a < 2 ; a < 2.5 ; a < True
a < np.float32(3) ; a < np.int64(3) ; a < -1 ; a < 0 ; a <= 2 ; a <= 2.5 ; a <= True ; a <= np.float32(3) ; a <= np.int64(3) ; a <= -1
a <= 0 ; a > 2 ; a > 2.5 ; a > True ; a > np.float32(3) ; a > np.int64(3) ; a > -1 ; a > 0 ; a >= 2 ; a >= 2.5 ; a >= True
a >= np.float32(3) ; a >= np.int64(3) ; a >= -1 ; a >= 0 ; a & 2 ; a & 2.5 ; a & True ; a & np.float32(3) ; a & np.int64(3) ; a & -1
a & 0 ; a | 2 ; a | 2.5 ; a | True ; a | np.float32(3) ; a | np.int64(3) ; a | -1 ; a | 0 ; a ^ 2 ; a ^ 2.5 ; a ^ True
a ^ np.float32(3) ; a ^ np.int64(3) ; a ^ -1 ; a ^ 0 ; 2 - a ; 2.5 - a ; np.float64(3) - a ; 2 / a ; 2.5 / a ; np.float64(3) / a
2 // a ; 2.5 // a ; np.float64(3) // a ; 2 ** a ; 2.5 ** a ; np.float64(3) ** a ; 2 < a ; 2.5 < a ; np.float64(3) < a

[unary]
np.negative(a) ; np.absolute(a) ; np.fabs(a) ; np.sign(a) ; np.rint(a) ; np.floor(a) ; np.ceil(a) ; np.trunc(a) ; np.sqrt(a)
np.square(a) ; np.reciprocal(a) ; np.exp(a) ; np.exp2(a) ; np.expm1(a) ; np.log(a) ; np.log2(a) ; np.log10(a) ; np.log1p(a) ; np.sin(a)
np.cos(a) ; np.tan(a) ; np.sinh(a) ; np.cosh(a) ; np.tanh(a) ; np.arcsin(a) ; np.arccos(a) ; np.arctan(a) ; np.arcsinh(a)
np.arccosh(a) ; np.arctanh(a) ; np.degrees(a) ; np.radians(a) ; np.isfinite(a) ; np.isinf(a) ; np.isnan(a) ; np.signbit(a)
np.logical_not(a) ; np.invert(a) ; np.conjugate(a) ; np.positive(a) ; -a ; +a ; ~a ; abs(a)

[binary functions]
np.add(a, b) ; np.subtract(a, b) ; np.multiply(a, b) ; np.divide(a, b) ; np.floor_divide(a, b) ; np.remainder(a, b) ; np.power(a, b)
np.float_power(a, b) ; np.maximum(a, b) ; np.minimum(a, b) ; np.fmax(a, b) ; np.fmin(a, b) ; np.copysign(a, b) ; np.hypot(a, b)
np.logaddexp(a, b) ; np.logaddexp2(a, b) ; np.nextafter(a, b) ; np.arctan2(a, b) ; np.logical_and(a, b) ; np.logical_or(a, b)
np.logical_xor(a, b) ; np.bitwise_and(a, b) ; np.bitwise_or(a, b) ; np.bitwise_xor(a, b) ; np.equal(a, b) ; np.less(a, b)
np.greater_equal(a, b)

[reductions]
np.sum(a) ; np.prod(a) ; np.max(a) ; np.min(a) ; np.mean(a) ; np.std(a) ; np.var(a) ; np.any(a) ; np.all(a) ; np.argmax(a)
np.argmin(a) ; np.cumsum(a) ; np.cumprod(a) ; np.ptp(a) ; np.median(a) ; np.sum(a, axis=0) ; np.prod(a, axis=0) ; np.max(a, axis=0)
np.min(a, axis=0) ; np.mean(a, axis=0) ; np.std(a, axis=0) ; np.var(a, axis=0) ; np.any(a, axis=0) ; np.all(a, axis=0)
np.argmax(a, axis=0) ; np.argmin(a, axis=0) ; np.cumsum(a, axis=0) ; np.cumprod(a, axis=0) ; np.ptp(a, axis=0) ; np.median(a, axis=0)
np.sum(a, axis=-1) ; np.prod(a, axis=-1) ; np.max(a, axis=-1) ; np.min(a, axis=-1) ; np.mean(a, axis=-1) ; np.std(a, axis=-1)
np.var(a, axis=-1) ; np.any(a, axis=-1) ; np.all(a, axis=-1) ; np.argmax(a, axis=-1) ; np.argmin(a, axis=-1) ; np.cumsum(a, axis=-1)
np.cumprod(a, axis=-1) ; np.ptp(a, axis=-1) ; np.median(a, axis=-1) ; np.sum(a, axis=1, keepdims=True)
np.prod(a, axis=1, keepdims=True) ; np.max(a, axis=1, keepdims=True) ; np.min(a, axis=1, keepdims=True)
np.mean(a, axis=1, keepdims=True) ; np.std(a, axis=1, keepdims=True) ; np.var(a, axis=1, keepdims=True)
np.any(a, axis=1, keepdims=True) ; np.all(a, axis=1, keepdims=True) ; np.argmax(a, axis=1, keepdims=True)
np.argmin(a, axis=1, keepdims=True) ; np.cumsum(a, axis=1, keepdims=True) ; np.cumprod(a, axis=1, keepdims=True)
np.ptp(a, axis=1, keepdims=True) ; np.median(a, axis=1, keepdims=True) ; np.sum(a, (0, 1)) ; np.prod(a, (0, 1)) ; np.max(a, (0, 1))
np.min(a, (0, 1)) ; np.mean(a, (0, 1)) ; np.std(a, (0, 1)) ; np.any(a, (0, 1)) ; np.all(a, (0, 1)) ; a.sum() ; a.prod() ; a.max()
a.min() ; a.mean() ; a.std() ; a.var() ; a.any() ; a.all() ; a.argmax() ; a.argmin() ; a.cumsum() ; a.cumprod() ; a.sum(axis=0)
a.prod(axis=0) ; a.max(axis=0) ; a.min(axis=0) ; a.mean(axis=0) ; a.std(axis=0) ; a.var(axis=0) ; a.any(axis=0) ; a.all(axis=0)
a.argmax(axis=0) ; a.argmin(axis=0) ; a.cumsum(axis=0) ; a.cumprod(axis=0) ; a.sum(axis=5) ; a.prod(axis=5) ; a.max(axis=5)
a.min(axis=5) ; a.mean(axis=5) ; a.std(axis=5) ; a.var(axis=5) ; a.any(axis=5) ; a.all(axis=5) ; a.argmax(axis=5) ; a.argmin(axis=5)
a.cumsum(axis=5) ; a.cumprod(axis=5) ; np.sum(a, dtype=np.float64) ; a.sum(axis=()) ; np.sum(a, initial=3) ; np.sum(a, where=a > 1)
np.add.reduce(a) ; np.maximum.reduce(a, axis=1) ; np.add.accumulate(a) ; np.multiply.outer(a[0], b[0]) ; np.std(a, ddof=1)
np.var(a, axis=0, ddof=1) ; np.average(a) ; np.average(a, axis=0, weights=[1, 2])

[shapes]
a.T ; a.reshape(-1) ; a.reshape(3, 2) ; a.reshape((6,)) ; a.ravel() ; a.flatten() ; a.T.ravel() ; a.T.flatten() ; a.transpose()
a.transpose(1, 0) ; a.transpose((1, 0)) ; a.swapaxes(0, 1) ; a.squeeze() ; a[None].squeeze(0) ; np.squeeze(a[:, None])
np.expand_dims(a, 0) ; np.expand_dims(a, (0, -1)) ; np.atleast_1d(a) ; np.atleast_2d(a) ; np.atleast_3d(a) ; np.moveaxis(a, 0, 1)
np.rollaxis(a, 1) ; np.concatenate([a, b]) ; np.concatenate([a, b], axis=1) ; np.concatenate([a, b], axis=None) ; np.stack([a, b])
np.stack([a, b], axis=-1) ; np.vstack([a, b]) ; np.hstack([a, b]) ; np.dstack([a, b]) ; np.column_stack([a, b]) ; np.tile(a, 2)
np.tile(a, (2, 1)) ; np.repeat(a, 2) ; np.repeat(a, 2, axis=0) ; np.roll(a, 1) ; np.roll(a, 1, axis=1) ; np.flip(a) ; np.flipud(a)
np.rot90(a) ; np.split(a, 2) ; np.array_split(a, 2, axis=1) ; np.broadcast_to(a, (2, 2, 3)) ; np.append(a, b) ; np.insert(a, 1, 5)
np.delete(a, 0) ; np.pad(a, 1) ; np.diff(a) ; np.diff(a, axis=0) ; np.ediff1d(a) ; np.trace(a) ; np.diag(a) ; np.diagonal(a)
np.tril(a) ; np.triu(a) ; a.repeat(2) ; a.take([0, 2]) ; np.take(a, [0, 1], axis=1) ; np.take(a, 1) ; np.ravel(a)
np.reshape(a, (3, 2)) ; np.resize(a, (3, 3)) ; a.copy() ; np.copy(a) ; a.T.copy() ; np.swapaxes(a, 0, 1) ; np.shape(a) ; np.ndim(a)
np.size(a) ; np.cross(a, b)

[items]
a[0] ; a[-1] ; a[0, 1] ; a[0][1] ; a[:, 1] ; a[..., 0] ; a[1:, ::2] ; a[:, None] ; a[[0, 1]] ; a[[1, 0], [2, 1]] ; a[:, [0, 2]]
a[a > 1] ; a[5] ; a[0, 1, 2] ; a[::-1] ; a[np.array([0, 1])] ; a[np.int64(1)] ; a[True] ; a[()] ; a[...] ; a[1, ...]
a[np.array([0, 1], dtype=np.uint8)] ; a[0] + a[1] ; a[0, 1] + 1 ; a[0, 1] * a[1, 1] ; a[a.argmax(axis=0) * 0]
a[np.arange(2), np.arange(2)] ; list(a) ; [row.sum() for row in a] ; len(a) ; a.item() ; a[0, 0].item() ; a.tolist() ; float(a[1, 1])
int(a[1, 1]) ; bool(a[1, 1]) ; a[0, 1] if a[0, 1] > 0 else a[1]

[functions]
np.where(a > 1, a, b) ; np.where(a > 1, a, 0) ; np.where(a > 1, 1.5, a) ; np.where(a > 1, a, np.float32(1)) ; np.where(a)
np.clip(a, 1, 2) ; a.clip(1, 2) ; a.clip(None, 2) ; np.clip(a, 1.5, None) ; np.clip(a, b, 3) ; a.clip(-300, 300) ; a.round()
np.round(a, 1) ; a.astype(np.int32) ; a.astype(np.float32) ; a.astype('float64') ; a.astype(bool) ; a.astype(int) ; a.astype(np.uint8)
a.astype(np.complex64) ; a.astype(np.float16) ; a @ b.T ; a @ b[0] ; a[0] @ b[0] ; a @ b ; np.dot(a, b.T) ; np.dot(a[0], b[1])
a.dot(b[0]) ; np.matmul(a, b.T) ; np.inner(a, b) ; np.outer(a, b) ; np.vdot(a, b) ; np.tensordot(a, b) ; np.einsum('ij,kj->ik', a, b)
np.einsum('ij,ij', a, b) ; np.linalg.norm(a) ; np.linalg.norm(a, axis=1) ; np.sort(a) ; np.sort(a, axis=0) ; np.sort(a, axis=None)
np.argsort(a) ; np.unique(a) ; np.argsort(a, axis=None) ; np.argsort(a, kind='stable') ; np.unique(a, return_counts=True)
np.unique(a, return_inverse=True) ; np.unique(a[0]) ; np.searchsorted(np.sort(a[0]), b) ; np.searchsorted(a[0], 1.5, side='right')
a[np.argsort(a[:, 0])] ; np.sort(a, stable=True) ; np.sort(a, kind='x') ; np.median(a[0])
np.nonzero(a) ; np.count_nonzero(a) ; np.isclose(a, b) ; np.allclose(a, b) ; np.array_equal(a, b)
np.zeros_like(a) ; np.ones_like(a) ; np.full_like(a, 2) ; np.empty_like(a).fill(1) ; np.nan_to_num(a) ; np.nansum(a) ; np.nanmean(a)
np.nanmax(a) ; np.percentile(a, 50) ; np.interp(a, [0, 1], [2, 3]) ; np.searchsorted([1, 2], a) ; np.histogram(a)
np.bincount(a.ravel()) ; np.cov(a) ; np.corrcoef(a) ; np.gradient(a) ; np.convolve(a[0], b[0]) ; np.kron(a, b) ; np.meshgrid(a[0], b[1])
np.meshgrid(a[0], b[1], indexing='ij') ; np.linspace(0, 1, 3) + a ; np.arange(3) + a ; np.zeros(3) + a
np.ones((2, 3), dtype=np.int8) * a ; np.eye(3) + a[0] ; np.array([a[0, 0], a[1, 1]]) ; np.array([a, b]) ; np.array(a) ; np.asarray(a)
np.array(a, dtype=np.float64) ; np.array([1, 2, 3]) + a ; np.full((2, 3), 1.5) + a ; np.full(3, 2) + a ; a.dtype ; a.shape ; a.size
a.ndim ; a.nbytes ; a.itemsize ; a.strides ; np.result_type(a, b) ; a.dtype == np.float32 ; np.issubdtype(a.dtype, np.floating)
isinstance(a, np.ndarray) ; a.real ; a.imag ; a.conj() ; np.real(a) ; np.abs(a[0, 1]) ; np.sqrt(a[1, 1]) ; a.max() - a.min()
a.mean() * 2 ; a.sum() + np.float64(1) ; a.argmax() + 1 ; a.sum() / a.size ; a / a.sum(axis=1, keepdims=True)
(a - a.mean(0)) / (a.std(0) + 1) ; np.exp(a) / np.exp(a).sum() ; a.sum() == 3 ; a.view(np.uint8) ; a.tobytes() ; a.flags.writeable
a.base ; str(a) ; a in [1] ; a is a ; type(a) ; type(a[0, 0]) ; np.sum([a, b]) ; np.max([a[0, 0], b[0, 0]])
np.add(a, b, dtype=np.float64) ; np.add(a, b, out=np.zeros((2, 3))) ; np.add(a, b, where=a > 0) ; np.add(a) ; np.add(a, [1, 2, 3])
np.add(a, 'x') ; a + 'x' ; a + None ; a == None ; a + [1, 2, 3] ; a + [1, 2] ; np.heaviside(a, 1) ; np.gcd(a, b)
np.apply_along_axis(np.sum, 0, a) ; np.vectorize(float)(a) ; np.trapezoid(a) ; np.sum(a, out=np.zeros(())) ; np.float32(a[0, 1])
np.float64(a.sum()) ; a.sum(axis=0).astype(np.float64)

[writes]
write(a, 'a[0] = 5') ; write(a, 'a[0, 1] = 2.7') ; write(a, 'a[:, 1] = b[:, 0]') ; write(a, 'a += b') ; write(a, 'a -= 1')
write(a, 'a *= 2.5') ; write(a, 'a /= 2') ; write(a, 'a[a > 1] = 0') ; write(a, 'a[[0, 1], [1, 2]] = 9') ; write(a, 'a[1:] = a[:-1]')
write(a, 'a.fill(3)') ; write(a, 'np.copyto(a, b)') ; write(a, 'a.sort()') ; write(a, 'a[0] += a[1]') ; write(a, 'np.add(a, b, out=a)')
write(a, 'a[...] = 1') ; write(a, 'a[0] = [1, 2, 3]') ; write(a, 'a.T[0] = 4') ; write(a, 'a.reshape(-1)[2] = 8') ; write(a, 'a[7] = 1')

"""
"""Expressions by group, of arrays a and b; `write(a, statement)` stands for a statement."""


def _groups() -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for line in _EXPRESSIONS.split("\n"):
        if line.startswith("["):
            groups[line[1:-1]] = current = []
        elif line:
            current += line.split(" ; ")
    return groups


EXPRESSIONS = _groups()

DTYPES = "bool int8 int16 int32 int64 uint8 float32 float64 complex64".split()


def arrays(dtype: str, kind: str = "plain") -> tuple[np.ndarray, np.ndarray]:
    """Two arrays: of small numbers, of the numbers at the ends of the dtype, without elements, without dimensions, or of two shapes."""
    first, second = np.array([[0, 1, 2], [3, 1, 5]]).astype(dtype), np.array([[1, 2, 1], [4, 3, 2]]).astype(dtype)
    if kind == "ends":
        if first.dtype.kind in "iu":
            first.ravel()[:2] = np.iinfo(first.dtype).max, np.iinfo(first.dtype).max - 1
            second.ravel()[:2] = np.iinfo(first.dtype).min, 0
        elif first.dtype.kind in "fc":
            first.ravel()[:4] = np.nan, np.inf, -0.0, 1e38
            second.ravel()[:4] = 1.0, np.inf, np.nan, 1e38
    if kind == "empty":
        return first[:0], second[:0]
    if kind == "0-d":
        return np.array(first[1, 0]), np.array(second[1, 0])
    return (first, second[0]) if kind == "broadcast" else (first, second)


KINDS = ("plain", "ends", "empty", "0-d", "broadcast")


def program(expression: str):
    """A function of two arrays that computes the expression; `write(a, statement)` stands for a statement and gives the array."""
    if expression.startswith("write("):
        statement = expression.removeprefix("write(a, '").removesuffix("')")
        body = f"    a = np.array(a)\n    {statement}\n    return a"
    else:
        body = f"    return {expression}"
    namespace = {"np": np, "torch": torch}
    exec(f"def run(a, b):\n{body}", namespace)
    return namespace["run"]


def look(value):
    """What can be seen of a result; floats are rounded to what different orders of summation leave."""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in "biufc":
            return type(value), str(value)
        digits = 4 if value.dtype.itemsize <= 4 or value.dtype == np.complex64 else 10
        with np.errstate(all="ignore"):
            elements = [
                f"{element:.{digits}g}" if value.dtype.kind in "fc" else element for element in value.ravel().tolist()
            ]
        elements = [0.0 if element in ("-0", "0") else element for element in elements]
        return type(value), str(value.dtype), value.shape, elements
    if isinstance(value, (list, tuple)):
        return type(value), [look(item) for item in value]
    return type(value), f"{value:.6g}" if isinstance(value, float) else repr(value)


def outcome(function, *given):
    """The result or the exception, and the warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            found = look(function(*given))
        except Exception as error:
            found = type(error), str(error)
    return found, sorted({str(warning.message) for warning in seen})
