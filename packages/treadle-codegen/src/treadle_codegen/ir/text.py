"""The text form of programs: printed for people and for golden tests, and read back by `parse`.

    program
    symbols s0>=2
    input x: float32[4, 8] strides [8, 1]
    output out: float32[4] strides [1]
    loop sum_0 [i0:4] reduce [r0:8] origins relu, sum_1
      %0 = load x[8*i0 + r0] : float32
      %1 = relu %0 : float32
      %2 = reduce sum %1 : float32
      %3 = store out[i0] %2 : float32
    extern mm_0 aten.mm.default(view(x, [4, 8], [8, 1], 0), 1.5) -> t0
    return view(out, [4], [1], 0)
"""
