/* GuardProgram: reads a sequence of checks into a trie of accessors, so that paths share what they have in common.
 *
 *   Check((("local","x"), ("attr","a")), "type_is", int)          local x --- type_is T
 *   Check((("local","x"), ("attr","b")), "len", 2)          ==>     |-- attr a --- type_is int
 *   Check((("local","x"),), "type_is", T)                           `-- attr b --- len 2
 *
 * The order of evaluation is free between siblings (that is where failed checks move to the front), but a node's own
 * checks run in the order given and before everything below it: a check may rely on the earlier checks of its own path
 * and of the paths above it, for instance a capsule on a type_is.
 */
#include "treadle_frame.h"

typedef enum { ARGUMENT_NONE, ARGUMENT_NAME, ARGUMENT_INDEX, ARGUMENT_OBJECT, ARGUMENT_CALLABLE } ArgumentKind;

static const struct {
    const char *name;
    ArgumentKind argument;
    bool is_root;
} step_table[] = {
#define ROOT(name, argument) {#name, ARGUMENT_##argument, true},
#define ACCESSOR(name, argument) {#name, ARGUMENT_##argument, false},
#include "guard_steps.def"
#undef ROOT
#undef ACCESSOR
};

/* ---- the trie --------------------------------------------------------------------------------------------------- */

static void
free_checks(GuardCheck *check)
{
    while (check != NULL) {
        GuardCheck *next = check->next;
        tf_check_free_argument(check);
        Py_XDECREF(check->arg);
        Py_XDECREF(check->reason);
        PyMem_Free(check->others);
        PyMem_Free(check);
        check = next;
    }
}

static void
free_nodes(GuardNode *node)
{
    while (node != NULL) {
        GuardNode *next = node->next;
        free_nodes(node->children);
        free_checks(node->checks);
        tf_image_release(node->image);
        Py_XDECREF(node->key);
        PyMem_Free(node);
        node = next;
    }
}

static int
visit_checks(GuardCheck *check, visitproc visit, void *arg)
{
    for (; check != NULL; check = check->next) {
        Py_VISIT(check->arg);
    }
    return 0;
}

static int
visit_nodes(GuardNode *node, visitproc visit, void *arg)
{
    for (; node != NULL; node = node->next) {
        Py_VISIT(node->key);
        int stop = visit_checks(node->checks, visit, arg);
        if (stop == 0) {
            stop = visit_nodes(node->children, visit, arg);
        }
        if (stop != 0) {
            return stop;
        }
    }
    return 0;
}

/* Whether a step means the same as the node's: 1, 0, -1 with an exception set. */
static int
step_matches(GuardNode *node, StepKind kind, PyObject *key, Py_ssize_t index)
{
    if (node->kind != kind) {
        return 0;
    }
    switch (step_table[kind].argument) {
    case ARGUMENT_NONE:
        return 1;
    case ARGUMENT_INDEX:
        return node->index == index;
    case ARGUMENT_NAME:
        return node->key == key || PyUnicode_Compare(node->key, key) == 0;
    case ARGUMENT_CALLABLE:
        return node->key == key;
    case ARGUMENT_OBJECT:
        if (node->key == key) {
            return 1;
        }
        return kind == STEP_const ? 0 : tf_same_value(node->key, key);
    }
    Py_UNREACHABLE();
}

/* The number of a local's or free variable's name among those the program binds; -1 with an error set. */
static Py_ssize_t
number_of_name(GuardProgram *program, StepKind kind, PyObject *name)
{
    PyObject *pair = Py_BuildValue("(iO)", (int)kind, name);
    if (pair == NULL) {
        return -1;
    }
    Py_ssize_t number = PyList_GET_SIZE(program->names);
    int failed = PyList_Append(program->names, pair);
    Py_DECREF(pair);
    return failed ? -1 : number;
}

/* Reads the argument of a step: *key (new reference or NULL) and *index. */
static int
parse_step(PyObject *step, Py_ssize_t position, PyObject *where, StepKind *kind, PyObject **key, Py_ssize_t *index)
{
    *key = NULL;
    *index = -1;
    if (!PyTuple_Check(step) || PyTuple_GET_SIZE(step) < 1 || !PyUnicode_Check(PyTuple_GET_ITEM(step, 0))) {
        PyErr_Format(tf_guard_error, "%U: step %zd must be a tuple that starts with an accessor's name, not %R", where,
                     position, step);
        return -1;
    }
    PyObject *name = PyTuple_GET_ITEM(step, 0);
    bool want_root = position == 0;
    int found = -1;
    for (int i = 0; i < STEP_COUNT; i++) {
        if (step_table[i].is_root == want_root && PyUnicode_CompareWithASCIIString(name, step_table[i].name) == 0) {
            found = i;
        }
    }
    if (found < 0) {
        PyErr_Format(tf_guard_error, "%U: %R is no %s", where, name, want_root ? "root of a path" : "accessor");
        return -1;
    }
    *kind = (StepKind)found;
    ArgumentKind wanted = step_table[found].argument;
    Py_ssize_t given = PyTuple_GET_SIZE(step) - 1;
    if (given != (wanted != ARGUMENT_NONE)) {
        PyErr_Format(tf_guard_error, "%U: step %R takes %d argument(s), got %zd", where, step,
                     wanted != ARGUMENT_NONE, given);
        return -1;
    }
    if (wanted == ARGUMENT_NONE) {
        return 0;
    }
    PyObject *argument = PyTuple_GET_ITEM(step, 1);
    const char *problem = NULL;
    if (wanted == ARGUMENT_NAME && !PyUnicode_CheckExact(argument)) {
        problem = "a str";
    }
    else if (wanted == ARGUMENT_CALLABLE && !PyCallable_Check(argument)) {
        problem = "a callable";
    }
    else if (wanted == ARGUMENT_INDEX) {
        *index = PyLong_CheckExact(argument) ? PyLong_AsSsize_t(argument) : -1;
        if (*index < 0) {
            PyErr_Clear();
            problem = "an int >= 0";
        }
    }
    if (problem != NULL) {
        PyErr_Format(tf_guard_error, "%U: the argument of step %R must be %s, not %R", where, name, problem, argument);
        return -1;
    }
    if (wanted == ARGUMENT_INDEX) {
        return 0;
    }
    *key = Py_NewRef(argument);
    if (PyUnicode_CheckExact(argument)) {
        PyUnicode_InternInPlace(key);
    }
    return 0;
}

/* The node for one step below `parent` (NULL: a root), made if need be; borrowed from the trie. */
static GuardNode *
add_step(GuardProgram *program, GuardNode *parent, PyObject *step, Py_ssize_t position, PyObject *where)
{
    StepKind kind;
    PyObject *key;
    Py_ssize_t index;
    if (parse_step(step, position, where, &kind, &key, &index) < 0) {
        return NULL;
    }
    GuardNode **end = parent == NULL ? &program->roots : &parent->children;
    for (; *end != NULL; end = &(*end)->next) {
        int same = step_matches(*end, kind, key, index);
        if (same != 0) {
            Py_XDECREF(key);
            return same < 0 ? NULL : *end;
        }
    }
    if (kind == STEP_local || kind == STEP_closure || kind == STEP_closure_cell) {
        index = number_of_name(program, kind, key);
        if (index < 0) {
            Py_XDECREF(key);
            return NULL;
        }
    }
    GuardNode *node = PyMem_Calloc(1, sizeof(GuardNode));
    if (node == NULL) {
        Py_XDECREF(key);
        PyErr_NoMemory();
        return NULL;
    }
    node->parent = parent;
    node->key = key;
    node->index = index;
    node->kind = kind;
    node->capture = -1;
    *end = node;
    return node;
}

/* The node at the end of a path, borrowed from the trie. */
static GuardNode *
add_path(GuardProgram *program, PyObject *path, PyObject *where)
{
    if (!PyTuple_Check(path) || PyTuple_GET_SIZE(path) == 0) {
        PyErr_Format(tf_guard_error, "%U: a path must be a tuple of at least one step, not %R", where, path);
        return NULL;
    }
    GuardNode *node = NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(path); i++) {
        node = add_step(program, node, PyTuple_GET_ITEM(path, i), i, where);
        if (node == NULL) {
            return NULL;
        }
    }
    return node;
}

static void
capture(GuardProgram *program, GuardNode *node)
{
    if (node->capture < 0) {
        node->capture = program->n_captures++;
    }
}

/* ---- checks ----------------------------------------------------------------------------------------------------- */

/* The further paths that the argument of a prepared check names, as a new tuple; NULL with an error set. */
static PyObject *
other_paths(const GuardCheck *check, PyObject *where)
{
    if (check->kind->others == PATHS_ARGUMENT) {
        return PyTuple_Pack(1, check->arg);
    }
    PyObject *given = check->kind->others == PATHS_IN_SECOND ? PyTuple_GET_ITEM(check->arg, 1) : check->arg;
    if (!PyTuple_Check(given) && !PyList_Check(given)) {
        PyErr_Format(tf_guard_error, "%U: the other paths must be a tuple or list, not %R", where, given);
        return NULL;
    }
    return PySequence_Tuple(given);
}

static int
add_other_paths(GuardProgram *program, GuardCheck *check, PyObject *where)
{
    PyObject *paths = other_paths(check, where);
    if (paths == NULL) {
        return -1;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(paths);
    check->others = PyMem_Calloc((size_t)n + 1, sizeof(GuardNode *));
    if (check->others == NULL) {
        Py_DECREF(paths);
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        GuardNode *node = add_path(program, PyTuple_GET_ITEM(paths, i), where);
        if (node == NULL) {
            Py_DECREF(paths);
            return -1;
        }
        capture(program, node);
        check->others[i] = node;
        check->n_others++;
    }
    Py_DECREF(paths);
    return 0;
}

static const CheckKind *
check_kind(PyObject *name, PyObject *where)
{
    for (size_t i = 0; i < tf_n_check_kinds; i++) {
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, tf_check_kinds[i].name) == 0) {
            return &tf_check_kinds[i];
        }
    }
    PyErr_Format(tf_guard_error, "%U: %R is no check", where, name);
    return NULL;
}

static int
fill_check(GuardProgram *program, GuardCheck *check, PyObject *given, PyObject *where)
{
    PyObject *path = PyTuple_GET_ITEM(given, 0);
    check->kind = check_kind(PyTuple_GET_ITEM(given, 1), where);
    if (check->kind == NULL) {
        return -1;
    }
    check->arg = Py_NewRef(PyTuple_GET_ITEM(given, 2));
    PyObject *reason = PyTuple_GET_ITEM(given, 3);
    if (!PyUnicode_Check(reason)) {
        PyErr_Format(tf_guard_error, "%U: the reason must be a str, not %R", where, reason);
        return -1;
    }
    bool empty = PyUnicode_GET_LENGTH(reason) == 0;
    check->reason = empty ? PyUnicode_FromFormat("%R %U %R", path, PyTuple_GET_ITEM(given, 1), check->arg)
                          : Py_NewRef(reason);
    if (check->reason == NULL) {
        return -1;
    }
    check->node = add_path(program, path, where);
    if (check->node == NULL || check->kind->prepare(check, where) < 0) {
        return -1;
    }
    if (tf_check_is_cross(check)) {
        capture(program, check->node);
        return add_other_paths(program, check, where);
    }
    return 0;
}

static int
add_check(GuardProgram *program, PyObject *given, Py_ssize_t number)
{
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != 4) {
        PyErr_Format(tf_guard_error, "check %zd must be a Check (a tuple: path, op, arg, reason), not %R", number, given);
        return -1;
    }
    PyObject *where = PyUnicode_FromFormat("check %zd (%S)", number, PyTuple_GET_ITEM(given, 1));
    if (where == NULL) {
        return -1;
    }
    GuardCheck *check = PyMem_Calloc(1, sizeof(GuardCheck));
    if (check == NULL) {
        Py_DECREF(where);
        PyErr_NoMemory();
        return -1;
    }
    int failed = fill_check(program, check, given, where);
    Py_DECREF(where);
    if (failed) {
        free_checks(check);
        return -1;
    }
    GuardCheck **end = tf_check_is_cross(check) ? &program->cross : &check->node->checks;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = check;
    program->in_order[program->n_checks++] = check;
    return 0;
}

/* Whether the image of a check decides all that is checked about this step from its value. */
static bool
is_implied(const GuardNode *node, const ImageSpec *spec)
{
    bool implied = (node->kind == STEP_attr || node->kind == STEP_apply) && node->children == NULL && node->capture < 0
                   && tf_image_implies(spec, node->key);
    for (const GuardCheck *check = node->checks; check != NULL && implied; check = check->next) {
        implied = check->kind->reads == READS_ANCHOR || check->kind->reads == READS_IDENTITY;
    }
    return implied;
}

/* Finds the nodes that have a check with an image, and the steps from their values that the image decides too. */
static void
link_images(GuardNode *list)
{
    for (GuardNode *node = list; node != NULL; node = node->next) {
        for (GuardCheck *check = node->checks; check != NULL && node->imaged == NULL; check = check->next) {
            node->imaged = check->spec != NULL ? check : NULL;
        }
        for (GuardNode *child = node->children; child != NULL && node->imaged != NULL; child = child->next) {
            child->implied = is_implied(child, node->imaged->spec);
        }
        link_images(node->children);
    }
}

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

/* ---- the vocabulary, for Python ------------------------------------------------------------------------------------ */

static PyObject *
names_of_steps(bool roots)
{
    PyObject *names = PyList_New(0);
    for (int i = 0; names != NULL && i < STEP_COUNT; i++) {
        PyObject *name = step_table[i].is_root == roots ? PyUnicode_FromString(step_table[i].name) : Py_NewRef(Py_None);
        if (name == NULL || (name != Py_None && PyList_Append(names, name) < 0)) {
            Py_CLEAR(names);
        }
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *
names_of_checks(void)
{
    PyObject *names = PyList_New((Py_ssize_t)tf_n_check_kinds);
    for (size_t i = 0; names != NULL && i < tf_n_check_kinds; i++) {
        PyObject *name = PyUnicode_FromString(tf_check_kinds[i].name);
        if (name == NULL) {
            Py_CLEAR(names);
            break;
        }
        PyList_SET_ITEM(names, (Py_ssize_t)i, name);
    }
    return names;
}

/* Adds the names in a list (stolen) to the module as a tuple. */
static int
add_names(PyObject *module, const char *attribute, PyObject *names)
{
    PyObject *tuple = names == NULL ? NULL : PyList_AsTuple(names);
    Py_XDECREF(names);
    int failed = tuple == NULL || PyModule_AddObjectRef(module, attribute, tuple) < 0;
    Py_XDECREF(tuple);
    return failed ? -1 : 0;
}

int
tf_program_add_vocabulary(PyObject *module)
{
    return add_names(module, "ROOTS", names_of_steps(true)) < 0 || add_names(module, "ACCESSORS", names_of_steps(false)) < 0
                   || add_names(module, "OPS", names_of_checks()) < 0
               ? -1
               : 0;
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
    free_nodes(program->roots);
    free_checks(program->cross);
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
    int stop = visit_nodes(program->roots, visit, arg);
    return stop != 0 ? stop : visit_checks(program->cross, visit, arg);
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
        if (add_check(program, PyTuple_GET_ITEM(checks, i), i) < 0) {
            Py_DECREF(program);
            return NULL;
        }
    }
    link_images(program->roots);
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

static size_t
size_of_nodes(const GuardNode *list)
{
    size_t size = 0;
    for (const GuardNode *node = list; node != NULL; node = node->next) {
        size += sizeof(GuardNode) + size_of_nodes(node->children);
    }
    return size;
}

static PyObject *
program_sizeof(PyObject *self, PyObject *nothing)
{
    GuardProgram *program = (GuardProgram *)self;
    size_t size = sizeof(GuardProgram) + size_of_nodes(program->roots) + tf_memo_size(program);
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
