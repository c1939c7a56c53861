/* Descends the trie of a guard program over the values of a frame.
 *
 * Every value on the way down is held by a reference of its own, since accessors and checks may run Python code.
 * Three results everywhere: 1 holds, 0 fails (no exception set), -1 an exception that is no Exception (KeyboardInterrupt,
 * SystemExit) came out of a check and must be passed on.
 */
#include "treadle_frame.h"

/* After a failed accessor or check. */
int
tf_clear_ordinary_error(void)
{
    if (PyErr_Occurred() == NULL) {
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

/* ---- accessors: a new reference, or NULL with or without an exception set ----------------------------------------- */

static PyObject *
mapping_item(PyObject *mapping, PyObject *key)
{
    if (mapping == NULL) {
        return NULL;
    }
    if (PyDict_Check(mapping)) {
        return Py_XNewRef(PyDict_GetItemWithError(mapping, key));
    }
    return PyObject_GetItem(mapping, key);
}

static PyObject *
own_dict(PyObject *value)
{
    if (PyType_Check(value)) {
        return Py_XNewRef(tf_type_dict((PyTypeObject *)value));
    }
    if (_PyObject_GetDictPtr(value) != NULL) {
        return PyObject_GenericGetDict(value, NULL);
    }
    return PyObject_GetAttrString(value, "__dict__");
}

static PyObject *
instance_dict_item(PyObject *value, PyObject *name)
{
    if (PyType_Check(value)) {
        return Py_XNewRef(PyDict_GetItemWithError(tf_type_dict((PyTypeObject *)value), name));
    }
    PyObject **dict = _PyObject_GetDictPtr(value);
    if (dict != NULL) {
        return *dict == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(*dict, name));
    }
    /* An object with a `__dict__` that is not in its layout: a module subclass, a property. */
    PyObject *found = PyObject_GetAttrString(value, "__dict__");
    if (found == NULL) {
        return NULL;
    }
    PyObject *item = mapping_item(found, name);
    Py_DECREF(found);
    return item;
}

PyObject *
tf_key_iterator(PyObject *mapping)
{
    return (PyODict_Check(mapping) ? PyODict_Type.tp_iter : PyDict_Type.tp_iter)(mapping);
}

PyObject *
tf_nth_key(PyObject *mapping, Py_ssize_t index)
{
    if (!PyDict_Check(mapping)) {
        return NULL;
    }
    if (PyDict_CheckExact(mapping)) {
        Py_ssize_t position = 0;
        PyObject *key;
        if (index >= PyDict_GET_SIZE(mapping)) {
            return NULL;
        }
        for (Py_ssize_t i = 0; PyDict_Next(mapping, &position, &key, NULL); i++) {
            if (i == index) {
                return Py_NewRef(key);
            }
        }
        return NULL;
    }
    PyObject *iterator = tf_key_iterator(mapping);
    PyObject *key = NULL;
    for (Py_ssize_t i = 0; iterator != NULL && i <= index; i++) {
        Py_XSETREF(key, PyIter_Next(iterator));
        if (key == NULL) {
            break;
        }
    }
    Py_XDECREF(iterator);
    return key;
}

/* What the callable of a computed root gives for the values at its paths. */
static PyObject *
computed_value(GuardProgram *program, const GuardNode *root, const GuardView *view)
{
    PyObject *values = PyTuple_New(root->n_operands);
    for (Py_ssize_t i = 0; values != NULL && i < root->n_operands; i++) {
        PyObject *value = tf_path_value(program, root->operands[i], view);
        if (value == NULL) {
            Py_CLEAR(values);
        }
        else {
            PyTuple_SET_ITEM(values, i, value);
        }
    }
    PyObject *result = values == NULL ? NULL : PyObject_CallObject(PyTuple_GET_ITEM(root->key, 0), values);
    Py_XDECREF(values);
    return result;
}

PyObject *
tf_root_value(GuardProgram *program, const GuardNode *root, const GuardView *view)
{
    PyObject *cell = NULL;
    switch (root->kind) {
    case STEP_local:
        return view->slots != NULL ? Py_XNewRef(view->slots[view->bound[root->index]])
                                   : mapping_item(view->locals, root->key);
    case STEP_global:
        return mapping_item(view->globals, root->key);
    case STEP_builtin:
        return mapping_item(view->builtins, root->key);
    case STEP_const:
        return Py_NewRef(root->key);
    case STEP_referent:
        return Py_XNewRef(tf_referent(root->key));
    case STEP_globals:
        return Py_XNewRef(view->globals);
    case STEP_computed:
        return computed_value(program, root, view);
    case STEP_closure:
    case STEP_closure_cell:
        if (view->closure == NULL) {
            return NULL;
        }
        if (!PyTuple_Check(view->closure)) {
            cell = mapping_item(view->closure, root->key);
        }
        else if (view->slots != NULL) {
            cell = Py_NewRef(PyTuple_GET_ITEM(view->closure, view->bound[root->index]));
        }
        else {
            Py_ssize_t at = PySequence_Index(program->freevars, root->key);
            cell = at < 0 ? NULL : Py_NewRef(PyTuple_GET_ITEM(view->closure, at));
        }
        if (cell == NULL) {
            return NULL;
        }
        if (root->kind == STEP_closure_cell) {
            return cell;
        }
        PyObject *contents = PyCell_Check(cell) ? Py_XNewRef(PyCell_GET(cell)) : NULL;
        Py_DECREF(cell);
        return contents;
    default:
        Py_UNREACHABLE();
    }
}

PyObject *
tf_step_value(const GuardNode *node, PyObject *value)
{
    PyObject *result = NULL;
    switch (node->kind) {
    case STEP_attr:
        return tf_lookup_attr(value, node->key, &result) < 0 ? NULL : result;
    case STEP_instance_dict:
        return instance_dict_item(value, node->key);
    case STEP_own_dict:
        return own_dict(value);
    case STEP_descriptor:
        return tf_descriptor_value(node->key, value);
    case STEP_slot: {
        PyObject *descriptor = Py_XNewRef(tf_slot_descriptor(node->key));
        result = descriptor == NULL ? NULL : tf_descriptor_value(descriptor, value);
        Py_XDECREF(descriptor);
        return result;
    }
    case STEP_dict_item:
        return PyDict_Check(value) ? Py_XNewRef(PyDict_GetItemWithError(value, node->key)) : NULL;
    case STEP_dict_item_of: {
        PyObject *key = Py_XNewRef(tf_referent(node->key));     /* `__eq__` may free it */
        result = key != NULL && PyDict_Check(value) ? Py_XNewRef(PyDict_GetItemWithError(value, key)) : NULL;
        Py_XDECREF(key);
        return result;
    }
    case STEP_list_item:
        return PyList_Check(value) && node->index < PyList_GET_SIZE(value) ? Py_NewRef(PyList_GET_ITEM(value, node->index))
                                                                          : NULL;
    case STEP_tuple_item:
        return PyTuple_Check(value) && node->index < PyTuple_GET_SIZE(value)
                   ? Py_NewRef(PyTuple_GET_ITEM(value, node->index))
                   : NULL;
    case STEP_item:
        return PyObject_GetItem(value, node->key);
    case STEP_type:
        return Py_NewRef((PyObject *)Py_TYPE(value));
    case STEP_dict_key:
        return tf_nth_key(value, node->index);
    case STEP_apply:
        return PyObject_CallOneArg(node->key, value);
    default:
        Py_UNREACHABLE();
    }
}

/* ---- all checks ---------------------------------------------------------------------------------------------------- */

PyObject *
tf_path_value(GuardProgram *program, const GuardNode *node, const GuardView *view)
{
    if (node->parent == NULL) {
        return tf_root_value(program, node, view);
    }
    PyObject *parent = tf_path_value(program, node->parent, view);
    if (parent == NULL) {
        return NULL;
    }
    PyObject *value = tf_step_value(node, parent);
    Py_DECREF(parent);
    return value;
}

/* Moves `node` to the front of its list, so that what failed once is checked first. */
void
tf_program_promote(GuardNode **list, GuardNode *node)
{
    if (*list == node) {
        return;
    }
    GuardNode **link = list;
    while (*link != node) {
        link = &(*link)->next;
    }
    *link = node->next;
    node->next = *list;
    *list = node;
}

static int descend(Descent *, GuardNode **list, PyObject *parent_value, bool skip_implied);

#define MAX_IMAGE_MISSES 64

/* The checks of one node, then everything below it. Borrows `value`. `decided`: by the node's image. */
static int
check_all(Descent *descent, GuardNode *node, PyObject *value, bool decided)
{
    for (GuardCheck *check = node->checks; check != NULL; check = check->next) {
        int holds = decided && check == node->imaged ? 1 : tf_check_test(check, value, NULL);
        if (holds <= 0) {
            return holds;
        }
    }
    if (node->capture >= 0) {
        Py_XSETREF(descent->captures[node->capture], Py_NewRef(value));
    }
    return node->children == NULL ? 1 : descend(descent, &node->children, value, decided);
}

/* A new image is the bytes from before the checks, if they are the same after: the checks may run Python code. */
int
tf_check_node(Descent *descent, GuardNode *node, PyObject *value)
{
    if (node->imaged == NULL) {
        return check_all(descent, node, value, false);
    }
    if (node->image != NULL && tf_image_matches(node->image, value)) {
        node->image_misses -= node->image_misses > 0;
        return check_all(descent, node, value, true);
    }
    Image *image = node->image_misses < MAX_IMAGE_MISSES ? tf_image_take(node->imaged->spec, value) : NULL;
    int holds = check_all(descent, node, value, false);
    if (holds == 1 && image != NULL && tf_image_matches(image, value)) {
        Image *old = node->image;
        node->image_misses += old != NULL;
        node->image = image;
        image = old;
    }
    tf_image_release(image);
    return holds;
}

/* All nodes of a list of siblings. On failure the culprit moves to the front, unless an evaluation further out is in
 * the middle of the same list (a guard that runs Python code, another thread): that one must not skip a sibling. */
static int
descend(Descent *descent, GuardNode **list, PyObject *parent_value, bool skip_implied)
{
    for (GuardNode *node = *list; node != NULL; node = node->next) {
        if (skip_implied && node->implied) {
            continue;
        }
        PyObject *value = parent_value == NULL ? tf_root_value(descent->program, node, descent->view)
                                               : tf_step_value(node, parent_value);
        int holds;
        if (value == NULL) {
            holds = tf_clear_ordinary_error();
        }
        else {
            holds = tf_check_node(descent, node, value);
            Py_DECREF(value);
        }
        if (holds <= 0) {
            if (descent->program->running == 1) {
                tf_program_promote(list, node);
            }
            return holds;
        }
    }
    return 1;
}

int
tf_check_cross(Descent *descent, GuardCheck *check)
{
    PyObject *on_stack[TF_MAX_CAPTURES_ON_STACK];
    PyObject **others = on_stack;
    if (check->n_others > TF_MAX_CAPTURES_ON_STACK) {
        others = PyMem_Malloc(sizeof(PyObject *) * (size_t)check->n_others);
        if (others == NULL) {
            return 0;
        }
    }
    for (Py_ssize_t i = 0; i < check->n_others; i++) {
        others[i] = descent->captures[check->others[i]->capture];
    }
    int holds = tf_check_test(check, descent->captures[check->node->capture], others);
    if (others != on_stack) {
        PyMem_Free(others);
    }
    return holds;
}

/* All checks, whatever the memo says. */
static int
evaluate(Descent *descent)
{
    GuardProgram *program = descent->program;
    int holds = descend(descent, &program->roots, NULL, false);
    for (GuardCheck *check = program->cross; check != NULL && holds == 1; check = check->next) {
        holds = tf_check_cross(descent, check);
    }
    if (holds == 1) {
        tf_memo_learn(descent);
    }
    return holds;
}

int
tf_program_holds(GuardProgram *program, const GuardView *view)
{
    PyObject *on_stack[TF_MAX_CAPTURES_ON_STACK] = {NULL};
    Descent descent = {program, view, on_stack};
    tf_counters.guard_evals++;
    if (program->roots == NULL) {
        return 1;
    }
    if (program->n_captures > TF_MAX_CAPTURES_ON_STACK) {
        descent.captures = PyMem_Calloc((size_t)program->n_captures, sizeof(PyObject *));
        if (descent.captures == NULL) {
            return 0;
        }
    }
    Py_INCREF(program);
    program->running++;
    MemoAnswer answer = program->memo == NULL ? MEMO_STALE : tf_memo_holds(&descent);
    int holds = answer == MEMO_STALE ? evaluate(&descent) : (int)answer;
    program->running--;
    for (int i = 0; i < program->n_captures; i++) {
        Py_XDECREF(descent.captures[i]);
    }
    if (descent.captures != on_stack) {
        PyMem_Free(descent.captures);
    }
    Py_DECREF(program);
    return holds;
}

/* ---- one check at a time, for explanations -------------------------------------------------------------------------- */

static int
check_alone(GuardProgram *program, const GuardCheck *check, const GuardView *view)
{
    PyObject *values = PyTuple_New(check->n_others + 1);
    if (values == NULL) {
        return -1;
    }
    int holds = 1;
    for (Py_ssize_t i = 0; i <= check->n_others && holds == 1; i++) {
        PyObject *value = tf_path_value(program, i == 0 ? check->node : check->others[i - 1], view);
        if (value == NULL) {
            holds = tf_clear_ordinary_error();
        }
        else {
            PyTuple_SET_ITEM(values, i, value);
        }
    }
    if (holds == 1) {
        PyObject *const *items = ((PyTupleObject *)values)->ob_item;
        holds = tf_check_test(check, items[0], items + 1);
    }
    Py_DECREF(values);
    return holds;
}

int
tf_program_first_failure(GuardProgram *program, const GuardView *view, Py_ssize_t *failed)
{
    int holds = 1;
    Py_INCREF(program);
    for (Py_ssize_t i = 0; i < program->n_checks && holds == 1; i++) {
        holds = check_alone(program, program->in_order[i], view);
        *failed = i;
    }
    Py_DECREF(program);
    return holds;
}
