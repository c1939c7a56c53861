"""A fuzzer for soundness: what a compiled function returns is what Python would have returned, whatever happened between two calls.

    python -m soundness --steps 50000            # from tools/, or with tools/ on PYTHONPATH

A *case* is a world (classes, instances, containers, modules, functions, globals: random source text) and a list of steps. A step is a call
of the world's function `f`, or a change of anything that the function can reach. The world is built twice. One of the two has its `f`
compiled. After every step both must agree: results, exceptions, printed text, random state, aliasing, and the state of the whole world.
A case that disagrees is minimised and printed as a program that reproduces it.

world     random worlds and calls
changes   random changes between two calls
compare   canonical descriptions of values, which are compared
run       carries out a case
minimise  removes what a failure does not need
"""
