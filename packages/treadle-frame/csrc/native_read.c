/* What a C library says about many values at once: numbers that its functions give, and memory that they point to.
 *
 * Handles and functions are those of `native_tensor` checks (guard_native.c); this file knows no header of the library either.
 */
#include "treadle_frame.h"

typedef int32_t (*NativeFunction)(void *handle, int64_t *out);

#define MOST_FUNCTIONS 8

/* The values, and how to reach the library's object behind each. */
typedef struct {
    PyObject *values;       /* owned: a list or tuple */
    PyObject *types;        /* borrowed */
    Py_ssize_t handle_offset;
} Asked;

static int
fill_asked(Asked *asked, PyObject *objects, PyObject *types, Py_ssize_t handle_offset)
{
    if (!PyType_Check(types) && !PyTuple_Check(types)) {
        PyErr_SetString(PyExc_TypeError, "types must be a type or a tuple of types");
        return -1;
    }
    *asked = (Asked){PySequence_Fast(objects, "objects must be a sequence"), types, handle_offset};
    return asked->values == NULL ? -1 : 0;
}

/* The handle of the value at a position; NULL with an error set if the value is of another type. */
static void *
handle_at(const Asked *asked, Py_ssize_t position)
{
    PyObject *value = PySequence_Fast_GET_ITEM(asked->values, position);
    if (!tf_is_of_types(value, asked->types)) {
        PyErr_Format(PyExc_TypeError, "object %zd is of another type: %s", position, Py_TYPE(value)->tp_name);
        return NULL;
    }
    return (char *)value + asked->handle_offset;
}

/* An address given as an int; NULL with an error set. */
static void *
address_from(PyObject *number)
{
    void *address = PyLong_Check(number) ? PyLong_AsVoidPtr(number) : NULL;
    if (address == NULL && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "a function must be a non-zero address (an int), not %R", number);
    }
    return address;
}

static int
ask(NativeFunction function, const Asked *asked, Py_ssize_t position, int64_t *answer)
{
    void *handle = handle_at(asked, position);
    if (handle == NULL) {
        return -1;
    }
    *answer = 0;
    if (function(handle, answer) != 0) {
        PyErr_Format(PyExc_RuntimeError, "the library gives no answer for object %zd", position);
        return -1;
    }
    return 0;
}

static PyObject *
answers(const Asked *asked, const NativeFunction *functions, Py_ssize_t n_functions)
{
    Py_ssize_t n = PySequence_Fast_GET_SIZE(asked->values);
    PyObject *result = PyBytes_FromStringAndSize(NULL, n * n_functions * (Py_ssize_t)sizeof(int64_t));
    if (result == NULL) {
        return NULL;
    }
    char *end = PyBytes_AS_STRING(result);
    for (Py_ssize_t i = 0; i < n; i++) {
        for (Py_ssize_t f = 0; f < n_functions; f++, end += sizeof(int64_t)) {
            int64_t answer;
            if (ask(functions[f], asked, i, &answer) < 0) {
                Py_DECREF(result);
                return NULL;
            }
            memcpy(end, &answer, sizeof answer);
        }
    }
    return result;
}

static PyObject *
native_numbers(PyObject *self, PyObject *args)
{
    PyObject *objects, *types, *addresses;
    Py_ssize_t handle_offset;
    if (!PyArg_ParseTuple(args, "OOnO!", &objects, &types, &handle_offset, &PyTuple_Type, &addresses)) {
        return NULL;
    }
    Py_ssize_t n_functions = PyTuple_GET_SIZE(addresses);
    NativeFunction functions[MOST_FUNCTIONS];
    if (n_functions < 1 || n_functions > MOST_FUNCTIONS) {
        return PyErr_Format(PyExc_ValueError, "1 to %d functions can be asked at once", MOST_FUNCTIONS);
    }
    for (Py_ssize_t f = 0; f < n_functions; f++) {
        *(void **)&functions[f] = address_from(PyTuple_GET_ITEM(addresses, f));
        if (functions[f] == NULL) {
            return NULL;
        }
    }
    Asked asked;
    if (fill_asked(&asked, objects, types, handle_offset) < 0) {
        return NULL;
    }
    PyObject *result = answers(&asked, functions, n_functions);
    Py_DECREF(asked.values);
    return result;
}

/* The sum of the sizes; -1 with an error set if they are not as many sizes as values. */
static Py_ssize_t
total_of(PyObject *sizes, Py_ssize_t n)
{
    if (PyTuple_GET_SIZE(sizes) != n) {
        PyErr_Format(PyExc_ValueError, "%zd sizes for %zd objects", PyTuple_GET_SIZE(sizes), n);
        return -1;
    }
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_ssize_t size = PyLong_AsSsize_t(PyTuple_GET_ITEM(sizes, i));
        if (size < 0 || __builtin_add_overflow(total, size, &total)) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "a size is negative, or the sizes are too large");
            }
            return -1;
        }
    }
    return total;
}

static int
copy_memory(const Asked *asked, NativeFunction function, PyObject *sizes, char *end)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sizes); i++) {
        Py_ssize_t size = PyLong_AsSsize_t(PyTuple_GET_ITEM(sizes, i));
        int64_t address;
        if (ask(function, asked, i, &address) < 0) {
            return -1;
        }
        if (size > 0 && address == 0) {
            PyErr_Format(PyExc_ValueError, "object %zd has no memory", i);
            return -1;
        }
        if (size > 0) {
            memcpy(end, (const void *)(intptr_t)address, (size_t)size);
            end += size;
        }
    }
    return 0;
}

static PyObject *
native_memory(PyObject *self, PyObject *args)
{
    PyObject *objects, *types, *address, *sizes;
    Py_ssize_t handle_offset;
    if (!PyArg_ParseTuple(args, "OOnOO!", &objects, &types, &handle_offset, &address, &PyTuple_Type, &sizes)) {
        return NULL;
    }
    NativeFunction function;
    *(void **)&function = address_from(address);
    Asked asked;
    if (function == NULL || fill_asked(&asked, objects, types, handle_offset) < 0) {
        return NULL;
    }
    Py_ssize_t total = total_of(sizes, PySequence_Fast_GET_SIZE(asked.values));
    PyObject *result = total < 0 ? NULL : PyBytes_FromStringAndSize(NULL, total);
    if (result != NULL && copy_memory(&asked, function, sizes, PyBytes_AS_STRING(result)) < 0) {
        Py_CLEAR(result);
    }
    Py_DECREF(asked.values);
    return result;
}

PyMethodDef tf_native_methods[] = {
    {"native_numbers", native_numbers, METH_VARARGS,
     "native_numbers(objects, types, handle_offset, functions) -> bytes\n\nWhat C functions say about each object, as int64 "
     "values, all functions of one object after\nthose of the one before. Functions are addresses of `int32_t f(void *handle, int64_t "
     "*out)`, as\nin NativeTensorCheck. TypeError for an object that is not exactly of these types; RuntimeError where\na function fails."},
    {"native_memory", native_memory, METH_VARARGS,
     "native_memory(objects, types, handle_offset, function, sizes) -> bytes\n\nThe bytes at the address that a C function gives for each "
     "object, `sizes` says how many, in order.\nThe caller vouches for the sizes. Errors as in native_numbers; ValueError for an "
     "object whose address\nis null and whose size is not 0."},
    {NULL, NULL, 0, NULL},
};
