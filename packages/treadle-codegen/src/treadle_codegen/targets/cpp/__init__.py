"""C++ for CPUs: everything that knows the language, ctypes, the compiler, oneDNN or the processor."""
