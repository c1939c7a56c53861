"""Decompositions and solvers of linear algebra, and Fourier transforms.

LAPACK reports in `info` that a matrix is singular or not positive definite, or that an iteration does not converge. Eager raises then.
The operators `*_ex` return `info`, and eager's composites read it and raise. A graph of ATen operators holds only the call of `*_ex`, so
these operators count as raising, too.
"""

from __future__ import annotations

from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import Kind, Raises

families(
    """
    cholesky cholesky_inverse linalg_cholesky_ex linalg_inv_ex linalg_lu_factor_ex linalg_ldl_factor_ex _linalg_solve_ex
    linalg_eigvals _linalg_eigvals linalg_lstsq
    """,
    kind=Kind.LINALG,
    raises=Raises.BY_VALUE,
)
families("linalg_eig", kind=Kind.LINALG, raises=Raises.BY_VALUE, derivative_raises=(1,))
families(
    "_linalg_eigh",
    kind=Kind.LINALG,
    raises=Raises.BY_VALUE,
    derivative_raises=(1,),
    optional_results=("compute_v", (1,)),
)
families(
    "_linalg_svd",
    kind=Kind.LINALG,
    raises=Raises.BY_VALUE,
    derivative_raises=(0, 2),
    optional_results=("compute_uv", (0, 2)),
)
# Composites of those above.
families(
    """
    inverse linalg_inv linalg_cholesky linalg_lu_factor linalg_ldl_factor linalg_solve linalg_solve_ex linalg_tensorinv linalg_tensorsolve
    linalg_matrix_power matrix_power linalg_eigh linalg_eigvalsh linalg_svd linalg_svdvals svd linalg_matrix_rank
    linalg_cond linalg_norm linalg_matrix_norm nuclear_norm
    """,
    kind=Kind.LINALG,
    raises=Raises.BY_VALUE,
)
families("pinverse linalg_pinv", kind=Kind.LINALG, raises=Raises.BY_VALUE, casts_inside=True)
families(
    """
    _linalg_det _linalg_slogdet linalg_householder_product linalg_ldl_solve linalg_lu linalg_lu_solve
    linalg_matrix_exp linalg_qr linalg_solve_triangular cholesky_solve geqrf lu_unpack ormqr triangular_solve
    """,
    kind=Kind.LINALG,
)
family("linalg_cross", kind=Kind.LINALG, decompose=True)
families("_fft_c2c _fft_c2r _fft_r2c", kind=Kind.FFT)
