/* The module treadle_frame._core: sentinels, counters, and the parts put together. */
#include "treadle_frame.h"

Counters tf_counters;
PyObject *tf_run_cached, *tf_skip, *tf_skip_below, *tf_run_once, *tf_run_once_below;
PyObject *tf_layout_error, *tf_guard_error, *tf_evaluator_error, *tf_stale_warning, *tf_evaluator_warning;

/* ---- sentinels --------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    const char *name;
} Sentinel;

static PyObject *
sentinel_repr(PyObject *self)
{
    return PyUnicode_FromFormat("treadle_frame.%s", ((Sentinel *)self)->name);
}

/* As a str from __reduce__ it means: the global of this name, so copies and pickles are the sentinel itself. */
static PyObject *
sentinel_reduce(PyObject *self, PyObject *nothing)
{
    return PyUnicode_FromString(((Sentinel *)self)->name);
}

static PyMethodDef sentinel_methods[] = {
    {"__reduce__", sentinel_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject Sentinel_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "treadle_frame._core.Sentinel",
    .tp_basicsize = sizeof(Sentinel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_repr = sentinel_repr,
    .tp_methods = sentinel_methods,
};

static int
add_sentinel(PyObject *module, const char *name, PyObject **place)
{
    if (*place == NULL) {
        Sentinel *sentinel = PyObject_New(Sentinel, &Sentinel_Type);
        if (sentinel == NULL) {
            return -1;
        }
        sentinel->name = name;
        *place = (PyObject *)sentinel;
    }
    return PyModule_AddObjectRef(module, name, *place);
}

/* ---- counters ------------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    unsigned long long *value;
} counter_table[] = {
    {"hits", &tf_counters.hits},
    {"misses", &tf_counters.misses},
    {"guard_evals", &tf_counters.guard_evals},
    {"handler_calls", &tf_counters.handler_calls},
    {"dispatcher_hits", &tf_counters.dispatcher_hits},
    {"dispatcher_misses", &tf_counters.dispatcher_misses},
};

static PyObject *
module_counters(PyObject *module, PyObject *nothing)
{
    PyObject *counters = PyDict_New();
    for (size_t i = 0; counters != NULL && i < sizeof counter_table / sizeof counter_table[0]; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(*counter_table[i].value);
        if (value == NULL || PyDict_SetItemString(counters, counter_table[i].name, value) < 0) {
            Py_CLEAR(counters);
        }
        Py_XDECREF(value);
    }
    return counters;
}

static PyMethodDef module_methods[] = {
    {"counters", module_counters, METH_NOARGS,
     "counters() -> dict[str, int]\n\nSince import, over all threads: hits and misses of the hook, guard_evals (programs "
     "evaluated),\nhandler_calls, dispatcher_hits, dispatcher_misses."},
    {NULL, NULL, 0, NULL},
};

/* ---- initialisation ------------------------------------------------------------------------------------------------------- */

static int
import_errors(void)
{
    const struct {
        const char *name;
        PyObject **place;
    } table[] = {
        {"LayoutError", &tf_layout_error},       {"GuardError", &tf_guard_error},
        {"EvaluatorError", &tf_evaluator_error}, {"StaleGuardWarning", &tf_stale_warning},
        {"EvaluatorWarning", &tf_evaluator_warning},
    };
    PyObject *errors = PyImport_ImportModule("treadle_frame.errors");
    if (errors == NULL) {
        return -1;
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        Py_XSETREF(*table[i].place, PyObject_GetAttrString(errors, table[i].name));
        if (*table[i].place == NULL) {
            Py_DECREF(errors);
            return -1;
        }
    }
    Py_DECREF(errors);
    return 0;
}

/* Runs again when a program removes the module from sys.modules and imports it anew: what is global is made once. */
static int
execute(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "treadle_frame works in the main interpreter only");
        return -1;
    }
    PyTypeObject *types[] = {&GuardProgram_Type, &Entry_Type, &FrameInfo_Type, &Dispatcher_Type};
    PyMethodDef *methods[] = {module_methods, tf_cache_methods, tf_hook_methods, tf_native_methods};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (PyModule_AddType(module, types[i]) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (PyModule_AddFunctions(module, methods[i]) < 0) {
            return -1;
        }
    }
    if (PyType_Ready(&Sentinel_Type) < 0 || add_sentinel(module, "RUN_CACHED", &tf_run_cached) < 0
        || add_sentinel(module, "SKIP", &tf_skip) < 0 || add_sentinel(module, "SKIP_BELOW", &tf_skip_below) < 0
        || add_sentinel(module, "RUN_ONCE", &tf_run_once) < 0
        || add_sentinel(module, "RUN_ONCE_BELOW", &tf_run_once_below) < 0) {
        return -1;
    }
    return import_errors() < 0 || tf_cache_init() < 0 || tf_run_init() < 0 || tf_trie_add_vocabulary(module) < 0 ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "treadle_frame._core",
    .m_doc = "The frame evaluation hook of treadle_frame; use it through treadle_frame.",
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
