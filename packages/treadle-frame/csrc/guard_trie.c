/* Reads a sequence of checks into a trie of accessors, so that paths share what they have in common.
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

typedef enum {
    ARGUMENT_NONE,
    ARGUMENT_NAME,
    ARGUMENT_INDEX,
    ARGUMENT_OBJECT,
    ARGUMENT_CALLABLE,
    ARGUMENT_REFERENCE,
    ARGUMENT_SLOT,
    ARGUMENT_COMPUTATION,
} ArgumentKind;

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

void
tf_trie_free_checks(GuardCheck *check)
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

void
tf_trie_free(GuardNode *node)
{
    while (node != NULL) {
        GuardNode *next = node->next;
        tf_trie_free(node->children);
        tf_trie_free_checks(node->checks);
        tf_image_release(node->image);
        Py_XDECREF(node->key);
        PyMem_Free(node->operands);
        PyMem_Free(node);
        node = next;
    }
}

int
tf_trie_visit_checks(GuardCheck *check, visitproc visit, void *arg)
{
    for (; check != NULL; check = check->next) {
        Py_VISIT(check->arg);
    }
    return 0;
}

int
tf_trie_visit(GuardNode *node, visitproc visit, void *arg)
{
    for (; node != NULL; node = node->next) {
        Py_VISIT(node->key);
        int stop = tf_trie_visit_checks(node->checks, visit, arg);
        if (stop == 0) {
            stop = tf_trie_visit(node->children, visit, arg);
        }
        if (stop != 0) {
            return stop;
        }
    }
    return 0;
}

size_t
tf_trie_size(const GuardNode *list)
{
    size_t size = 0;
    for (const GuardNode *node = list; node != NULL; node = node->next) {
        size += sizeof(GuardNode) + (size_t)node->n_operands * sizeof(GuardNode *) + tf_trie_size(node->children);
    }
    return size;
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
    case ARGUMENT_REFERENCE:        /* comparing references would compare what they refer to */
        return node->key == key;
    case ARGUMENT_SLOT:
        return PyTuple_GET_ITEM(node->key, 0) == PyTuple_GET_ITEM(key, 0)
               && PyUnicode_Compare(PyTuple_GET_ITEM(node->key, 1), PyTuple_GET_ITEM(key, 1)) == 0;
    case ARGUMENT_COMPUTATION:      /* with equal paths, too: one of its own for each, which costs a call and no more */
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
    bool is_pair = PyTuple_Check(argument) && PyTuple_GET_SIZE(argument) == 2;
    if (wanted == ARGUMENT_NAME && !PyUnicode_CheckExact(argument)) {
        problem = "a str";
    }
    else if (wanted == ARGUMENT_CALLABLE && !PyCallable_Check(argument)) {
        problem = "a callable";
    }
    else if (wanted == ARGUMENT_REFERENCE && !PyWeakref_CheckRefExact(argument)) {
        problem = "a weakref.ref";
    }
    else if (wanted == ARGUMENT_SLOT
             && !(is_pair && PyWeakref_CheckRefExact(PyTuple_GET_ITEM(argument, 0))
                  && PyUnicode_CheckExact(PyTuple_GET_ITEM(argument, 1)))) {
        problem = "a pair (weakref.ref of a class, str)";
    }
    else if (wanted == ARGUMENT_COMPUTATION
             && !(is_pair && PyCallable_Check(PyTuple_GET_ITEM(argument, 0)) && PyTuple_Check(PyTuple_GET_ITEM(argument, 1)))) {
        problem = "a pair (callable, tuple of paths)";
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

static GuardNode *add_path(GuardProgram *, PyObject *path, PyObject *where);
static int add_operands(GuardProgram *, GuardNode *, PyObject *where);

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
    return kind == STEP_computed && add_operands(program, node, where) < 0 ? NULL : node;
}

/* Finds the nodes of the paths whose values a computed root is made of. */
static int
add_operands(GuardProgram *program, GuardNode *node, PyObject *where)
{
    PyObject *paths = PyTuple_GET_ITEM(node->key, 1);
    node->operands = PyMem_Calloc((size_t)PyTuple_GET_SIZE(paths) + 1, sizeof(GuardNode *));
    if (node->operands == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(paths); i++) {
        node->operands[i] = add_path(program, PyTuple_GET_ITEM(paths, i), where);
        if (node->operands[i] == NULL) {
            return -1;
        }
        node->n_operands++;
    }
    return 0;
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

int
tf_trie_add_check(GuardProgram *program, PyObject *given, Py_ssize_t number)
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
        tf_trie_free_checks(check);
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
void
tf_trie_link_images(GuardNode *list)
{
    for (GuardNode *node = list; node != NULL; node = node->next) {
        for (GuardCheck *check = node->checks; check != NULL && node->imaged == NULL; check = check->next) {
            node->imaged = check->spec != NULL ? check : NULL;
        }
        for (GuardNode *child = node->children; child != NULL && node->imaged != NULL; child = child->next) {
            child->implied = is_implied(child, node->imaged->spec);
        }
        tf_trie_link_images(node->children);
    }
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
tf_trie_add_vocabulary(PyObject *module)
{
    return add_names(module, "ROOTS", names_of_steps(true)) < 0 || add_names(module, "ACCESSORS", names_of_steps(false)) < 0
                   || add_names(module, "OPS", names_of_checks()) < 0
               ? -1
               : 0;
}
