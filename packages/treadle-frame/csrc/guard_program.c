/* The type GuardProgram: a trie of checks (guard_trie.c), bound to the slots of a code object, evaluated by guard_eval.c. */
#include "treadle_frame.h"

/* ---- binding names to slots -------------------------------------------------------------------------------------- */

static int
index_of_name(PyObject *names, Py_ssize_t limit, PyObject *name)
{
    for (Py_ssize_t i = 0; i < limit; i++) {
        PyObject *candidate = PyTuple_GET_ITEM(names, i);
        if (candidate == name || PyUnicode_Compare(candidate, name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

/* Maps the program's names onto the argument slots and free variables of `code`. */
int *
tf_program_bind(GuardProgram *program, PyCodeObject *code)
{
    Py_ssize_t n = PyList_GET_SIZE(program->names);
    PyObject *freevars = PyCode_GetFreevars(code);
    int *bound = PyMem_Calloc((size_t)n + 1, sizeof(int));
    if (freevars == NULL || bound == NULL) {
        Py_XDECREF(freevars);
        PyMem_Free(bound);
        return (int *)PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *pair = PyList_GET_ITEM(program->names, i);
        bool local = PyLong_AsLong(PyTuple_GET_ITEM(pair, 0)) == STEP_local;
        PyObject *name = PyTuple_GET_ITEM(pair, 1);
        bound[i] = local ? index_of_name(code->co_localsplusnames, tf_n_arguments(code), name)
                         : index_of_name(freevars, PyTuple_GET_SIZE(freevars), name);
        if (bound[i] < 0) {
            PyErr_Format(tf_guard_error, "the guard names %s %R, but code object %R has no such %s",
                         local ? "local" : "closure variable", name, code->co_name, local ? "argument" : "free variable");
            Py_DECREF(freevars);
            PyMem_Free(bound);
            return NULL;
        }
    }
    Py_XSETREF(program->freevars, freevars);
    return bound;
}

/* ---- the type ---------------------------------------------------------------------------------------------------- */

static void
program_dealloc(PyObject *self)
{
    GuardProgram *program = (GuardProgram *)self;
    PyObject_GC_UnTrack(self);
    if (program->weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    tf_memo_free(program);
    tf_trie_free(program->roots);
    tf_trie_free_checks(program->cross);
    PyMem_Free(program->in_order);
    Py_XDECREF(program->checks);
    Py_XDECREF(program->names);
    Py_XDECREF(program->freevars);
    Py_TYPE(self)->tp_free(self);
}

/* No tp_clear: a program with cleared checks would hold for everything. Cycles break at the mutable objects in them. */
static int
program_traverse(PyObject *self, visitproc visit, void *arg)
{
    GuardProgram *program = (GuardProgram *)self;
    Py_VISIT(program->checks);
    Py_VISIT(program->names);
    Py_VISIT(program->freevars);
    int stop = tf_trie_visit(program->roots, visit, arg);
    return stop != 0 ? stop : tf_trie_visit_checks(program->cross, visit, arg);
}

static PyObject *
program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"checks", NULL};
    PyObject *given;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:GuardProgram", keywords, &given)) {
        return NULL;
    }
    PyObject *checks = PySequence_Tuple(given);
    if (checks == NULL) {
        return NULL;
    }
    GuardProgram *program = (GuardProgram *)type->tp_alloc(type, 0);
    if (program == NULL) {
        Py_DECREF(checks);
        return NULL;
    }
    program->checks = checks;
    program->wait = 1;          /* a guard that is evaluated once needs no memo */
    program->names = PyList_New(0);
    program->in_order = PyMem_Calloc((size_t)PyTuple_GET_SIZE(checks) + 1, sizeof(GuardCheck *));
    if (program->names == NULL || program->in_order == NULL) {
        Py_DECREF(program);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(checks); i++) {
        if (tf_trie_add_check(program, PyTuple_GET_ITEM(checks, i), i) < 0) {
            Py_DECREF(program);
            return NULL;
        }
    }
    tf_trie_link_images(program->roots);
    return (PyObject *)program;
}

/* Reads the arguments of check() and why_fails(). */
static int
parse_view(GuardProgram *program, const char *format, PyObject *args, PyObject *kwargs, GuardView *view)
{
    static char *keywords[] = {"locals", "globals", "closure", "builtins", NULL};
    PyObject *values[4] = {Py_None, Py_None, Py_None, Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, keywords, &values[0], &values[1], &values[2], &values[3])) {
        return -1;
    }
    for (int i = 0; i < 4; i++) {
        values[i] = values[i] == Py_None ? NULL : values[i];
    }
    *view = (GuardView){.locals = values[0], .globals = values[1], .closure = values[2], .builtins = values[3]};
    if (view->closure != NULL && PyTuple_Check(view->closure)
        && (program->freevars == NULL || PyTuple_GET_SIZE(program->freevars) != PyTuple_GET_SIZE(view->closure))) {
        PyErr_SetString(PyExc_TypeError, "closure: a tuple of cells is understood once the program belongs to an Entry, "
                                         "and must then be as long as its co_freevars; else give a mapping from name to cell");
        return -1;
    }
    return 0;
}

static PyObject *
program_check(PyObject *self, PyObject *args, PyObject *kwargs)
{
    GuardView view;
    if (parse_view((GuardProgram *)self, "O|OOO:check", args, kwargs, &view) < 0) {
        return NULL;
    }
    int holds = tf_program_holds((GuardProgram *)self, &view);
    return holds < 0 ? NULL : PyBool_FromLong(holds);
}

static PyObject *
program_why_fails(PyObject *self, PyObject *args, PyObject *kwargs)
{
    GuardProgram *program = (GuardProgram *)self;
    GuardView view;
    if (parse_view(program, "O|OOO:why_fails", args, kwargs, &view) < 0) {
        return NULL;
    }
    Py_ssize_t failed;
    int holds = tf_program_first_failure(program, &view, &failed);
    if (holds < 0) {
        return NULL;
    }
    return Py_NewRef(holds ? Py_None : program->in_order[failed]->reason);
}

static PyObject *
program_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<GuardProgram of %zd checks>", ((GuardProgram *)self)->n_checks);
}

static Py_ssize_t
program_length(PyObject *self)
{
    return ((GuardProgram *)self)->n_checks;
}

static PySequenceMethods program_as_sequence = {.sq_length = program_length};

static PyObject *
program_sizeof(PyObject *self, PyObject *nothing)
{
    GuardProgram *program = (GuardProgram *)self;
    size_t size = sizeof(GuardProgram) + tf_trie_size(program->roots) + tf_memo_size(program);
    for (Py_ssize_t i = 0; i < program->n_checks; i++) {
        size += sizeof(GuardCheck) + sizeof(GuardCheck *) + tf_check_size(program->in_order[i]);
    }
    return PyLong_FromSize_t(size);
}

static PyObject *
program_memo(PyObject *self, void *nothing)
{
    return tf_memo_describe((GuardProgram *)self);
}

static PyGetSetDef program_getset[] = {
    {"memo", program_memo, NULL,
     "What evaluations skip, as a dict: number of witnesses, images and checks that run on every call, builds, refreshes.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef program_methods[] = {
    {"__sizeof__", program_sizeof, METH_NOARGS, "Bytes, with the trie and the memo, without what checks refer to."},
    {"check", (PyCFunction)(void (*)(void))program_check, METH_VARARGS | METH_KEYWORDS,
     "check(locals, globals=None, closure=None, builtins=None) -> bool\n\nWhether all checks hold. `closure` maps names "
     "to cells, or is the tuple of cells of a code object for which an Entry holds this program."},
    {"why_fails", (PyCFunction)(void (*)(void))program_why_fails, METH_VARARGS | METH_KEYWORDS,
     "why_fails(locals, globals=None, closure=None, builtins=None) -> str | None\n\nThe reason of the first check, in "
     "the order given, that does not hold; None when all hold."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef program_members[] = {
    {"checks", T_OBJECT, offsetof(GuardProgram, checks), READONLY, "The checks as given, a tuple."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject GuardProgram_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "treadle_frame.GuardProgram",
    .tp_basicsize = sizeof(GuardProgram),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "GuardProgram(checks)\n\nChecks compiled to a trie. GuardError (a ValueError) names the check at fault.",
    .tp_new = program_new,
    .tp_dealloc = program_dealloc,
    .tp_traverse = program_traverse,
    .tp_repr = program_repr,
    .tp_as_sequence = &program_as_sequence,
    .tp_methods = program_methods,
    .tp_members = program_members,
    .tp_getset = program_getset,
    .tp_weaklistoffset = offsetof(GuardProgram, weakrefs),
    .tp_free = PyObject_GC_Del,
};
