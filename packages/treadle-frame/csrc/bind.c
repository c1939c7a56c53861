/* Binding the arguments of a call to the argument slots of a function, as CPython does when it makes a frame (Python/ceval.c:
 * initialize_locals). Nothing is raised for arguments that do not fit: the function itself is called then.
 */
#include "treadle_frame.h"

static int
index_of_parameter(PyCodeObject *code, PyObject *name)
{
    int end = code->co_argcount + code->co_kwonlyargcount;
    for (int i = code->co_posonlyargcount; i < end; i++) {
        if (PyTuple_GET_ITEM(code->co_localsplusnames, i) == name) {
            return i;
        }
    }
    for (int i = code->co_posonlyargcount; i < end; i++) {
        if (PyUnicode_Compare(PyTuple_GET_ITEM(code->co_localsplusnames, i), name) == 0) {
            return i;
        }
    }
    return -1;
}

/* Positional arguments, `self` of a bound method first, the surplus as *args. */
static int
bind_positional(PyObject *bound_self, PyCodeObject *code, const GivenArguments *given, PyObject **slots)
{
    int at = 0;
    if (bound_self != NULL && code->co_argcount > 0) {
        slots[at++] = Py_NewRef(bound_self);
    }
    else if (bound_self != NULL) {
        return 0;
    }
    Py_ssize_t used = 0;
    for (; used < given->n_args && at < code->co_argcount; used++) {
        slots[at++] = Py_NewRef(given->args[used]);
    }
    if (!(code->co_flags & CO_VARARGS)) {
        return used == given->n_args;
    }
    PyObject *surplus = PyTuple_New(given->n_args - used);
    if (surplus == NULL) {
        return -1;
    }
    for (Py_ssize_t i = used; i < given->n_args; i++) {
        PyTuple_SET_ITEM(surplus, i - used, Py_NewRef(given->args[i]));
    }
    slots[code->co_argcount + code->co_kwonlyargcount] = surplus;
    return 1;
}

static int
bind_keywords(PyCodeObject *code, const GivenArguments *given, PyObject **slots)
{
    PyObject *surplus = NULL;
    if (code->co_flags & CO_VARKEYWORDS) {
        surplus = slots[tf_n_arguments(code) - 1] = PyDict_New();
        if (surplus == NULL) {
            return -1;
        }
    }
    Py_ssize_t n = given->keyword_names == NULL ? 0 : PyTuple_GET_SIZE(given->keyword_names);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *name = PyTuple_GET_ITEM(given->keyword_names, i), *value = given->args[given->n_args + i];
        int slot = index_of_parameter(code, name);
        if (slot >= 0 && slots[slot] == NULL) {
            slots[slot] = Py_NewRef(value);
        }
        else if (slot >= 0 || surplus == NULL) {
            return 0;
        }
        else if (PyDict_SetItem(surplus, name, value) < 0) {
            return -1;
        }
    }
    return 1;
}

static int
bind_defaults(PyFunctionObject *function, PyCodeObject *code, PyObject **slots)
{
    Py_ssize_t n_defaults = function->func_defaults == NULL ? 0 : PyTuple_GET_SIZE(function->func_defaults);
    for (int i = 0; i < code->co_argcount; i++) {
        Py_ssize_t number = i - (code->co_argcount - n_defaults);
        if (slots[i] == NULL && number < 0) {
            return 0;
        }
        if (slots[i] == NULL) {
            slots[i] = Py_NewRef(PyTuple_GET_ITEM(function->func_defaults, number));
        }
    }
    for (int i = code->co_argcount; i < code->co_argcount + code->co_kwonlyargcount; i++) {
        if (slots[i] != NULL) {
            continue;
        }
        PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
        PyObject *value = function->func_kwdefaults == NULL ? NULL
                                                            : PyDict_GetItemWithError(function->func_kwdefaults, name);
        if (value == NULL) {
            return PyErr_Occurred() ? -1 : 0;
        }
        slots[i] = Py_NewRef(value);
    }
    return 1;
}

int
tf_bind_arguments(PyFunctionObject *function, PyObject *bound_self, PyCodeObject *code, const GivenArguments *given,
                  PyObject **slots)
{
    int bound = bind_positional(bound_self, code, given, slots);
    if (bound == 1) {
        bound = bind_keywords(code, given, slots);
    }
    return bound == 1 ? bind_defaults(function, code, slots) : bound;
}
