/* Entry objects: replacement code, the guard under which it is right, and the fast path that needs no frame. */
#include "treadle_frame.h"

static void
entry_dealloc(PyObject *self)
{
    Entry *entry = (Entry *)self;
    PyObject_GC_UnTrack(self);
    if (entry->weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    PyMem_Free(entry->bound);
    PyMem_Free(entry->fast_path_slots);
    PyMem_Free(entry->fast_path_keys);
    Py_XDECREF(entry->code);
    Py_XDECREF(entry->guard);
    Py_XDECREF(entry->payload);
    Py_XDECREF(entry->fast_path);
    Py_TYPE(self)->tp_free(self);
}

static int
entry_traverse(PyObject *self, visitproc visit, void *arg)
{
    Entry *entry = (Entry *)self;
    Py_VISIT(entry->code);
    Py_VISIT(entry->guard);
    Py_VISIT(entry->payload);
    Py_VISIT(entry->fast_path);
    return 0;
}

static int
entry_clear(PyObject *self)
{
    Py_CLEAR(((Entry *)self)->payload);
    return 0;
}

/* One value of a fast-path entry: the name of an argument, or (name of *args, index), or (name of **kwargs, key). */
static int
fill_fast_path_value(Entry *entry, Py_ssize_t number, PyObject *given)
{
    PyCodeObject *code = entry->code;
    PyObject *name = given, *key = NULL;
    if (PyTuple_Check(given) && PyTuple_GET_SIZE(given) == 2) {
        name = PyTuple_GET_ITEM(given, 0);
        key = PyTuple_GET_ITEM(given, 1);
    }
    int n_named = code->co_argcount + code->co_kwonlyargcount, n = tf_n_arguments(code), slot = -1;
    for (int i = 0; PyUnicode_Check(name) && i < n; i++) {
        if (PyUnicode_Compare(PyTuple_GET_ITEM(code->co_localsplusnames, i), name) == 0) {
            slot = i;
        }
    }
    bool is_args = slot == n_named && (code->co_flags & CO_VARARGS) != 0;
    bool good_key = key == NULL
                    || (slot >= n_named
                        && (is_args ? PyLong_CheckExact(key) && PyLong_AsSsize_t(key) >= 0 : PyUnicode_CheckExact(key)));
    if (slot < 0 || !good_key) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "fast_path: %R is neither an argument of %R nor an (argument, index or key) of its *args "
                     "or **kwargs", given, code->co_name);
        return -1;
    }
    entry->fast_path_slots[number] = slot;
    entry->fast_path_keys[number] = key;
    return 0;
}

/* fast_path = (callable, values, unpack[, may_retry]) */
static int
fill_fast_path(Entry *entry, PyObject *fast_path)
{
    entry->fast_path = Py_NewRef(fast_path);
    if (fast_path == Py_None) {
        return 0;
    }
    Py_ssize_t parts = PyTuple_Check(fast_path) ? PyTuple_GET_SIZE(fast_path) : 0;
    if ((parts != 3 && parts != 4) || !PyCallable_Check(PyTuple_GET_ITEM(fast_path, 0))
        || !PyTuple_Check(PyTuple_GET_ITEM(fast_path, 1)) || !PyBool_Check(PyTuple_GET_ITEM(fast_path, 2))
        || (parts == 4 && !PyCallable_Check(PyTuple_GET_ITEM(fast_path, 3)))) {
        PyErr_Format(PyExc_ValueError,
                     "fast_path: must be None or a tuple (callable, tuple of argument names, bool[, callable]), not %R", fast_path);
        return -1;
    }
    PyObject *values = PyTuple_GET_ITEM(fast_path, 1);
    entry->fast_path_callable = PyTuple_GET_ITEM(fast_path, 0);
    entry->fast_path_unpack = PyTuple_GET_ITEM(fast_path, 2) == Py_True;
    entry->fast_path_may_retry = parts == 4 ? PyTuple_GET_ITEM(fast_path, 3) : NULL;
    entry->n_fast_path = PyTuple_GET_SIZE(values);
    entry->fast_path_slots = PyMem_Calloc((size_t)entry->n_fast_path + 1, sizeof(int));
    entry->fast_path_keys = PyMem_Calloc((size_t)entry->n_fast_path + 1, sizeof(PyObject *));
    if (entry->fast_path_slots == NULL || entry->fast_path_keys == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < entry->n_fast_path; i++) {
        if (fill_fast_path_value(entry, i, PyTuple_GET_ITEM(values, i)) < 0) {
            return -1;
        }
    }
    return 0;
}

int
tf_entry_fast_path_values(Entry *entry, PyObject *const *slots, PyObject **values)
{
    for (Py_ssize_t i = 0; i < entry->n_fast_path; i++) {
        PyObject *value = slots[entry->fast_path_slots[i]], *key = entry->fast_path_keys[i];
        if (key != NULL && PyTuple_Check(value)) {
            Py_ssize_t index = PyLong_AsSsize_t(key);
            value = index < PyTuple_GET_SIZE(value) ? PyTuple_GET_ITEM(value, index) : NULL;
        }
        else if (key != NULL) {
            value = PyDict_GetItemWithError(value, key);
        }
        if (value == NULL) {
            PyErr_Clear();
            return 0;
        }
        values[i] = value;
    }
    return 1;
}

static PyObject *
entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"code", "guard", "payload", "fast_path", NULL};
    PyObject *code, *guard, *payload = Py_None, *fast_path = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!|OO:Entry", keywords, &PyCode_Type, &code, &GuardProgram_Type,
                                     &guard, &payload, &fast_path)) {
        return NULL;
    }
    if (!tf_is_plain_function_code((PyCodeObject *)code)) {
        PyErr_Format(tf_layout_error, "code: %R is not the code of a plain function (needs CO_OPTIMIZED and CO_NEWLOCALS, "
                     "must be no generator or coroutine)", code);
        return NULL;
    }
    Entry *entry = (Entry *)type->tp_alloc(type, 0);
    if (entry == NULL) {
        return NULL;
    }
    entry->code = (PyCodeObject *)Py_NewRef(code);
    entry->guard = (GuardProgram *)Py_NewRef(guard);
    entry->payload = Py_NewRef(payload);
    entry->bound = tf_program_bind(entry->guard, entry->code);
    if (entry->bound == NULL || fill_fast_path(entry, fast_path) < 0) {
        Py_DECREF(entry);
        return NULL;
    }
    return (PyObject *)entry;
}

static PyObject *
entry_repr(PyObject *self)
{
    Entry *entry = (Entry *)self;
    return PyUnicode_FromFormat("<Entry %U, %zd checks, %llu hits>", entry->code->co_name, entry->guard->n_checks,
                                entry->hits);
}

static PyMemberDef entry_members[] = {
    {"code", T_OBJECT, offsetof(Entry, code), READONLY, "The replacement code."},
    {"guard", T_OBJECT, offsetof(Entry, guard), READONLY, "The GuardProgram."},
    {"payload", T_OBJECT, offsetof(Entry, payload), 0, "Whatever the owner keeps here."},
    {"fast_path", T_OBJECT, offsetof(Entry, fast_path), READONLY, "None, or (callable, values, unpack[, may_retry])."},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY, "How often this entry was chosen."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject Entry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "treadle_frame.Entry",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Entry(code, guard, payload=None, fast_path=None)\n\nReplacement code and the guard under which it is right.\n"
              "fast_path=(callable, values, unpack): the entry's whole effect is callable(*values), whose result is returned as\n"
              "it is, or its item 0 when unpack is True; dispatchers then run no frame. A value is the name of an argument,\n"
              "(name of *args, index) or (name of **kwargs, key). With a fourth item, when the callable raises an Exception for\n"
              "which may_retry(exception) is true, the code runs all the same, and what it raises or returns counts.",
    .tp_new = entry_new,
    .tp_dealloc = entry_dealloc,
    .tp_traverse = entry_traverse,
    .tp_clear = entry_clear,
    .tp_repr = entry_repr,
    .tp_members = entry_members,
    .tp_weaklistoffset = offsetof(Entry, weakrefs),
    .tp_free = PyObject_GC_Del,
};
