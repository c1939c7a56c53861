/* What values and checks depend on, read without running Python code.
 *
 * Each function here gives the answer that guard_eval.c or guard_checks.c would give, and names every word of memory that the
 * answer depends on. What it does not know, it refuses (LINK_NONE, false), and then the value is fetched and checked on every call.
 * The answers that need an argument:
 *
 *   a dict            `ma_version_tag` moves with every change and is never given to another dict or another state
 *   a dict on 3.13    ... also when an object's attribute was stored inside the object: dict_versions.c sees to that
 *   an order of keys  exact dicts only: an OrderedDict changes its order without telling the dict
 *   a lookup          runs no Python code if all keys, and the one looked up, are str, int, ..., whose `==` is C code
 *   a type            `tp_version_tag` becomes 0 when an attribute of it or of a base changes, or its bases, and is never given
 *                     again; 0 is no tag
 *   a heap type       may be replaced (`obj.__class__ = T`) and its address reused: `ob_type` and the tag together are sure
 *   an instance dict  the pointer in the object is watched and then the dict; objects whose attributes are not in a dict
 *                     are given one, as `instance_dict` does
 */
#include "guard_memo.h"

/* ---- steps through words ----------------------------------------------------------------------------------------------- */

static bool
is_lasting(PyObject *value)
{
    return value == Py_None || value == Py_True || value == Py_False || value == Py_Ellipsis || value == Py_NotImplemented
           || (PyType_Check(value) && (((PyTypeObject *)value)->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0);
}

/* The value in a word of an object, which may be another one at the same address unless something says that it is not. */
static Link
peek_word(Builder *builder, GuardNode *node, PyObject *const *address, PyObject **value)
{
    *value = *address;
    if (*value == NULL || !tf_watch_word(builder, address)) {
        return LINK_NONE;
    }
    return is_lasting(*value) || tf_is_anchored(builder, node, *value, true) ? LINK_SOLID : LINK_LOOSE;
}

static Link
peek_list_item(Builder *builder, GuardNode *node, PyObject *list, Py_ssize_t index, PyObject **value)
{
    PyListObject *items = (PyListObject *)list;
    node->parent->pinned = true;
    if (index < 0 || index >= PyList_GET_SIZE(list) || !tf_watch_word(builder, &((PyVarObject *)list)->ob_size)
        || !tf_watch_word(builder, &items->ob_item)) {
        return LINK_NONE;
    }
    return peek_word(builder, node, &items->ob_item[index], value);
}

static Link
peek_tuple_item(Builder *builder, GuardNode *node, PyObject *tuple, Py_ssize_t index, PyObject **value)
{
    if (index < 0 || index >= PyTuple_GET_SIZE(tuple)) {
        return LINK_NONE;
    }
    if (node->parent->state == NODE_SOLID) {
        *value = PyTuple_GET_ITEM(tuple, index);
        return LINK_SOLID;
    }
    node->parent->pinned = true;
    return tf_watch_word(builder, &((PyVarObject *)tuple)->ob_size)
               ? peek_word(builder, node, &((PyTupleObject *)tuple)->ob_item[index], value)
               : LINK_NONE;
}

static Link
peek_dict_item(Builder *builder, PyObject *dict, PyObject *key, PyObject **value)
{
    if (!tf_is_plain_lookup(dict, key)) {
        return LINK_NONE;
    }
    *value = tf_plain_item(dict, key);
    return *value != NULL && tf_watch_dict(builder, dict, FACT_ITEM, key) ? LINK_SOLID : LINK_NONE;
}

/* ---- attributes ---------------------------------------------------------------------------------------------------------- */

static PyObject *dunder_dict, *dunder_getattribute;

static bool
have_names(void)
{
    if (dunder_getattribute == NULL) {
        dunder_dict = PyUnicode_InternFromString("__dict__");
        dunder_getattribute = PyUnicode_InternFromString("__getattribute__");
        PyErr_Clear();
    }
    return dunder_dict != NULL && dunder_getattribute != NULL;
}

/* Attributes kept in a word of a function, cell or method; NULL when the name is none of them. */
static PyObject *const *
word_of_attribute(PyObject *value, PyObject *name)
{
    if (PyCell_Check(value)) {
        return PyUnicode_CompareWithASCIIString(name, "cell_contents") == 0 ? &((PyCellObject *)value)->ob_ref : NULL;
    }
    if (!PyFunction_Check(value)) {
        return NULL;
    }
    PyFunctionObject *function = (PyFunctionObject *)value;
    const struct {
        const char *name;
        PyObject *const *word;
    } words[] = {
        {"__code__", &function->func_code},
        {"__defaults__", &function->func_defaults},
        {"__kwdefaults__", &function->func_kwdefaults},
        {"__closure__", &function->func_closure},
        {"__globals__", &function->func_globals},
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (PyUnicode_CompareWithASCIIString(name, words[i].name) == 0) {
            return words[i].word;
        }
    }
    return NULL;
}

static Link
peek_attribute_word(Builder *builder, GuardNode *node, PyObject *const *word, PyObject **value)
{
    if (*word == NULL) {        /* a function without defaults: None; an empty cell: no attribute */
        *value = Py_None;
        return !PyCell_Check(node->parent->seen) && tf_watch_word(builder, word) ? LINK_SOLID : LINK_NONE;
    }
    return peek_word(builder, node, word, value);
}

/* How `getattr` finds a name in an object whose type has the standard lookup. */
typedef enum {
    FOUND_UNKNOWN,
    FOUND_NOWHERE,
    FOUND_IN_TYPE,              /* a value that is no descriptor */
    FOUND_IN_DICT,
    FOUND_DICT,                 /* the name is __dict__ and means the instance dict */
} Found;

/* Whether `getattr` is object.__getattribute__, perhaps with a __getattr__ for what that does not find (`*hook`). */
static bool
has_standard_lookup(PyTypeObject *type, bool *hook)
{
    *hook = false;
    if (type->tp_getattro == PyObject_GenericGetAttr) {
        return true;
    }
    *hook = true;
    return type == &PyModule_Type
           || ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0
               && _PyType_Lookup(type, dunder_getattribute) == _PyType_Lookup(&PyBaseObject_Type, dunder_getattribute));
}

/* Whether what a type holds may become a descriptor, or another kind of one, without the type changing. */
static bool
may_become_descriptor(PyObject *in_type)
{
    return in_type != NULL && tf_can_change_type(in_type);
}

/* The instance dict, made if need be. NULL: it has none, or none yet. */
static PyObject **
instance_dict(PyObject *value)
{
    PyObject **place = _PyObject_GetDictPtr(value);
    PyErr_Clear();
    return place != NULL && *place != NULL ? place : NULL;
}

static Found
find_attribute(PyObject *value, PyObject *name, PyObject **found)
{
    PyTypeObject *type = Py_TYPE(value);
    bool hook;
    *found = NULL;
    if (!have_names() || PyType_Check(value) || !has_standard_lookup(type, &hook)) {
        return FOUND_UNKNOWN;
    }
    PyObject *in_type = _PyType_Lookup(type, name);
    PyErr_Clear();
    if (may_become_descriptor(in_type)) {
        return FOUND_UNKNOWN;
    }
    PyObject **place = instance_dict(value);
    if (in_type != NULL && PyDescr_IsData(in_type)) {
        if (name != dunder_dict || place == NULL || Py_TYPE(in_type) != &PyGetSetDescr_Type) {
            return FOUND_UNKNOWN;
        }
        PyObject *dict = PyObject_GenericGetAttr(value, name);      /* a getset descriptor: C code */
        Py_XDECREF(dict);
        PyErr_Clear();
        *found = *place;
        return dict == *place ? FOUND_DICT : FOUND_UNKNOWN;
    }
    if (place == NULL && type->tp_dictoffset != 0) {
        return FOUND_UNKNOWN;
    }
    if (place != NULL && !tf_is_plain_lookup(*place, name)) {
        return FOUND_UNKNOWN;
    }
    *found = place == NULL ? NULL : tf_plain_item(*place, name);
    if (*found != NULL) {
        return FOUND_IN_DICT;
    }
    if (in_type != NULL) {
        *found = in_type;
        return Py_TYPE(in_type)->tp_descr_get == NULL ? FOUND_IN_TYPE : FOUND_UNKNOWN;
    }
    return hook ? FOUND_UNKNOWN : FOUND_NOWHERE;
}

/* Watches what `find_attribute` has gone through. `owner`: the node whose value has the attribute. */
static bool
watch_attribute(Builder *builder, GuardNode *owner, PyObject *value, PyObject *name, Found found, bool is_value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (!tf_watch_type_of(builder, owner, value) || !tf_watch_type(builder, type)) {
        return false;
    }
    PyObject **place = instance_dict(value);
    owner->pinned = true;
    if (place == NULL) {
        return type->tp_dictoffset == 0;
    }
    if (!tf_watch_word(builder, place) || found == FOUND_DICT) {
        return found == FOUND_DICT;
    }
    FactKind fact = found != FOUND_IN_DICT ? FACT_ABSENT : is_value ? FACT_ITEM : FACT_PRESENT;
    return tf_watch_dict(builder, *place, fact, name);
}

/* The attributes of a type, whose metatype is `type`: its `__dict__` stands for the dict behind the proxy. */
static Link
peek_type_attribute(Builder *builder, GuardNode *node, PyTypeObject *type, PyObject **value)
{
    if (node->parent->state != NODE_SOLID || Py_TYPE(type) != &PyType_Type || tf_type_dict(type) == NULL) {
        return LINK_NONE;
    }
    if (node->key == dunder_dict) {
        for (GuardCheck *check = node->checks; check != NULL; check = check->next) {
            if (check->kind->reads != READS_KEYS && check->kind->reads != READS_LENGTH) {
                return LINK_NONE;
            }
        }
        for (GuardNode *child = node->children; child != NULL; child = child->next) {
            if (child->kind != STEP_item) {
                return LINK_NONE;
            }
        }
        *value = tf_type_dict(type);
        return node->capture < 0 ? LINK_SOLID : LINK_NONE;
    }
    PyObject *in_metatype = _PyType_Lookup(&PyType_Type, node->key), *found = _PyType_Lookup(type, node->key);
    PyErr_Clear();
    bool plain = found != NULL && !may_become_descriptor(found) && !may_become_descriptor(in_metatype)
                 && (Py_TYPE(found)->tp_descr_get == NULL || PyFunction_Check(found));
    if (!plain || (in_metatype != NULL && PyDescr_IsData(in_metatype))) {
        return LINK_NONE;
    }
    *value = found;
    return tf_watch_type(builder, type) ? LINK_SOLID : LINK_NONE;
}

static Link
peek_attribute(Builder *builder, GuardNode *node, PyObject *owner, PyObject **value)
{
    if (!have_names()) {
        return LINK_NONE;
    }
    if (PyType_Check(owner)) {
        return peek_type_attribute(builder, node, (PyTypeObject *)owner, value);
    }
    PyObject *const *word = word_of_attribute(owner, node->key);
    if (word != NULL) {
        node->parent->pinned = true;
        return tf_watch_type_of(builder, node->parent, owner) ? peek_attribute_word(builder, node, word, value) : LINK_NONE;
    }
    Found found = find_attribute(owner, node->key, value);
    bool known = found == FOUND_IN_TYPE || found == FOUND_IN_DICT || found == FOUND_DICT;
    if (!known || !watch_attribute(builder, node->parent, owner, node->key, found, true)) {
        return LINK_NONE;
    }
    return found == FOUND_DICT ? LINK_LOOSE : LINK_SOLID;
}

/* The word of a slot (`__slots__`), NULL when the descriptor describes none that is one word of this value. */
static PyObject *const *
word_of_slot(PyObject *descriptor, PyObject *value)
{
    if (Py_TYPE(descriptor) != &PyMemberDescr_Type || !PyObject_TypeCheck(value, PyDescr_TYPE(descriptor))) {
        return NULL;
    }
    const PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
    return member->type == T_OBJECT_EX ? (PyObject *const *)((char *)value + member->offset) : NULL;
}

static Link
peek_slot(Builder *builder, GuardNode *node, PyObject *descriptor, PyObject *owner, PyObject **value)
{
    PyObject *const *word = word_of_slot(descriptor, owner);
    return word != NULL && tf_watch_type_of(builder, node->parent, owner) ? peek_word(builder, node, word, value) : LINK_NONE;
}

/* The descriptor that an argument (reference to a class, name) means, watched; NULL where it cannot be. Borrowed from the class. */
static PyObject *
watch_named_slot(Builder *builder, PyObject *slot)
{
    PyObject *descriptor = tf_slot_descriptor(slot);
    if (!PyTuple_Check(slot)) {
        return descriptor;
    }
    PyWeakReference *reference = (PyWeakReference *)PyTuple_GET_ITEM(slot, 0);
    bool watched = descriptor != NULL && tf_watch_word(builder, &reference->wr_object)
                   && tf_watch_type(builder, (PyTypeObject *)reference->wr_object);
    return watched ? descriptor : NULL;
}

static Link
peek_named_slot(Builder *builder, GuardNode *node, PyObject *owner, PyObject **value)
{
    PyObject *descriptor = watch_named_slot(builder, node->key);
    return descriptor != NULL ? peek_slot(builder, node, descriptor, owner, value) : LINK_NONE;
}

/* ---- all steps ----------------------------------------------------------------------------------------------------------- */

static Link
peek_item(Builder *builder, GuardNode *node, PyObject *owner, PyObject **value)
{
    if (PyDict_CheckExact(owner)) {
        return peek_dict_item(builder, owner, node->key, value);
    }
    Py_ssize_t index = PyLong_CheckExact(node->key) ? PyLong_AsSsize_t(node->key) : -1;
    PyErr_Clear();
    if (PyList_CheckExact(owner)) {
        return peek_list_item(builder, node, owner, index, value);
    }
    return PyTuple_CheckExact(owner) ? peek_tuple_item(builder, node, owner, index, value) : LINK_NONE;
}

static Link
peek_instance_dict(Builder *builder, GuardNode *node, PyObject *owner, PyObject **value)
{
    PyObject **place = instance_dict(owner);
    node->parent->pinned = true;
    return place != NULL && tf_watch_word(builder, place) ? peek_dict_item(builder, *place, node->key, value) : LINK_NONE;
}

static Link
peek_own_dict(Builder *builder, GuardNode *node, PyObject *owner, PyObject **value)
{
    PyObject **place = instance_dict(owner);
    node->parent->pinned = true;
    return place != NULL ? peek_word(builder, node, place, value) : LINK_NONE;
}

static Link
peek_type(Builder *builder, GuardNode *node, PyObject *owner, PyObject **value)
{
    *value = (PyObject *)Py_TYPE(owner);
    return tf_watch_type_of(builder, node->parent, owner) ? LINK_SOLID : LINK_NONE;
}

static Link
peek_nth_key(Builder *builder, GuardNode *node, PyObject *owner, PyObject **value)
{
    *value = PyDict_CheckExact(owner) ? tf_nth_key(owner, node->index) : NULL;
    PyErr_Clear();
    if (*value == NULL) {
        return LINK_NONE;
    }
    Py_DECREF(*value);          /* the dict holds it */
    return tf_watch_dict(builder, owner, FACT_NTH_KEY, NULL) ? LINK_SOLID : LINK_NONE;
}

Link
tf_peek_step(Builder *builder, GuardNode *node, PyObject **value)
{
    PyObject *owner = node->parent->seen;
    /* Another object at the address must be of the same type for what is read from it to mean the same. */
    if (node->parent->state == NODE_LOOSE && !tf_watch_type_of(builder, node->parent, owner)) {
        return LINK_NONE;
    }
    switch (node->kind) {
    case STEP_attr:
        return peek_attribute(builder, node, owner, value);
    case STEP_instance_dict:
        return peek_instance_dict(builder, node, owner, value);
    case STEP_own_dict:
        return peek_own_dict(builder, node, owner, value);
    case STEP_descriptor:
        return peek_slot(builder, node, node->key, owner, value);
    case STEP_slot:
        return peek_named_slot(builder, node, owner, value);
    case STEP_dict_item:
        return PyDict_Check(owner) ? peek_dict_item(builder, owner, node->key, value) : LINK_NONE;
    case STEP_list_item:
        return PyList_Check(owner) ? peek_list_item(builder, node, owner, node->index, value) : LINK_NONE;
    case STEP_tuple_item:
        return PyTuple_Check(owner) ? peek_tuple_item(builder, node, owner, node->index, value) : LINK_NONE;
    case STEP_item:
        return peek_item(builder, node, owner, value);
    case STEP_type:
        return peek_type(builder, node, owner, value);
    case STEP_dict_key:
        return peek_nth_key(builder, node, owner, value);
    default:
        return LINK_NONE;
    }
}

/* ---- checks ---------------------------------------------------------------------------------------------------------------- */

bool
tf_is_anchored(Builder *builder, GuardNode *node, PyObject *value, bool watch)
{
    for (GuardCheck *check = node->checks; check != NULL; check = check->next) {
        if (check->kind->reads == READS_ANCHOR && tf_check_test(check, value, NULL) == 1) {
            /* A weak reference stops referring to its object when the object dies, whatever is at the address later. */
            return !watch || !PyWeakref_CheckRef(check->arg) || check->arg == value
                   || tf_watch_word(builder, &((PyWeakReference *)check->arg)->wr_object);
        }
    }
    return false;
}

static bool
peek_length(Builder *builder, GuardNode *node, PyObject *value)
{
    if (PyTuple_Check(value)) {
        node->pinned |= node->state == NODE_LOOSE;
        return node->state == NODE_SOLID || tf_watch_word(builder, &((PyVarObject *)value)->ob_size);
    }
    node->pinned = true;
    if (PyList_Check(value)) {
        return tf_watch_word(builder, &((PyVarObject *)value)->ob_size);
    }
    if (PyAnySet_Check(value)) {
        return tf_watch_word(builder, &((PySetObject *)value)->used);
    }
    return PyDict_Check(value) && tf_watch_dict(builder, value, FACT_CHECK, NULL);
}

static bool
peek_keys(Builder *builder, GuardNode *node, GuardCheck *check, PyObject *value)
{
    bool one_key = strcmp(check->kind->name, "dict_keys") != 0;
    node->pinned = true;
    return (one_key ? PyDict_Check(value) : PyDict_CheckExact(value)) && tf_is_plain_lookup(value, one_key ? check->arg : NULL)
           && (one_key || tf_is_plain_key(check->arg)) && tf_watch_dict(builder, value, FACT_CHECK, NULL);
}

static bool
peek_has_attribute(Builder *builder, GuardNode *node, GuardCheck *check, PyObject *value)
{
    PyObject *ignored, *name = check->arg;
    bool wanted = strcmp(check->kind->name, "has_attr") == 0;
    Found found = PyUnicode_CheckExact(name) ? find_attribute(value, name, &ignored) : FOUND_UNKNOWN;
    return found != FOUND_UNKNOWN && (found != FOUND_NOWHERE) == wanted
           && watch_attribute(builder, node, value, name, found, false);
}

/* Facts about the MRO of a type: its version covers them. */
static bool
peek_lookup(Builder *builder, GuardNode *node, GuardCheck *check, PyObject *value)
{
    bool holds = node->state == NODE_SOLID && tf_check_test(check, value, NULL) == 1;     /* a lookup may give it a version */
    node->pinned = true;
    return holds && tf_watch_type(builder, (PyTypeObject *)value);
}

/* Another code or tuple at an old address: of the code the weak reference in the argument tells, of the tuple only the length counts. */
static bool
peek_function(Builder *builder, GuardNode *node, GuardCheck *check, PyObject *value)
{
    if (!PyFunction_Check(value) || tf_check_test(check, value, NULL) != 1) {
        return false;
    }
    PyFunctionObject *function = (PyFunctionObject *)value;
    PyWeakReference *code = (PyWeakReference *)PyTuple_GET_ITEM(check->arg, 0);
    node->pinned = true;
    bool watched = tf_watch_word(builder, &function->func_code) && tf_watch_word(builder, &code->wr_object)
                   && tf_watch_word(builder, &function->func_defaults) && tf_watch_word(builder, &function->func_kwdefaults);
    if (watched && function->func_defaults != NULL) {
        watched = tf_watch_word(builder, &((PyVarObject *)function->func_defaults)->ob_size);
    }
    if (watched && function->func_kwdefaults != NULL) {
        watched = tf_is_plain_lookup(function->func_kwdefaults, PyTuple_GET_ITEM(check->arg, 2))
                  && tf_watch_dict(builder, function->func_kwdefaults, FACT_OTHER, NULL);
    }
    return watched;
}

static bool
peek_unset(Builder *builder, GuardNode *node, GuardCheck *check, PyObject *value)
{
    PyObject *descriptor = watch_named_slot(builder, check->arg);
    PyObject *const *word = descriptor == NULL ? NULL : word_of_slot(descriptor, value);
    return word != NULL && *word == NULL && tf_watch_type_of(builder, node, value) && tf_watch_word(builder, word);
}

bool
tf_peek_check(Builder *builder, GuardNode *node, GuardCheck *check)
{
    PyObject *value = node->seen;
    Reads reads = check->kind->reads;
    bool typed = reads == READS_LENGTH || reads == READS_KEYS || reads == READS_ATTRIBUTE || reads == READS_FUNCTION;
    if (typed && node->state == NODE_LOOSE && !tf_watch_type_of(builder, node, value)) {
        return false;
    }
    switch (reads) {
    case READS_ANCHOR:
        return tf_check_test(check, value, NULL) == 1 && (node->state == NODE_SOLID || tf_is_anchored(builder, node, value, true));
    case READS_IDENTITY:
        return node->state == NODE_SOLID && tf_check_test(check, value, NULL) == 1;
    case READS_TYPE:
        return tf_check_test(check, value, NULL) == 1 && tf_watch_type_of(builder, node, value);
    case READS_VALUE:
        return node->state == NODE_SOLID && tf_is_plain_key(value) && tf_is_plain_key(check->arg)
               && tf_check_test(check, value, NULL) == 1;
    case READS_LENGTH:
        return peek_length(builder, node, value) && tf_check_test(check, value, NULL) == 1;
    case READS_KEYS:
        return peek_keys(builder, node, check, value) && tf_check_test(check, value, NULL) == 1;
    case READS_ATTRIBUTE:
        return peek_has_attribute(builder, node, check, value);
    case READS_LOOKUP:
        return peek_lookup(builder, node, check, value);
    case READS_FUNCTION:
        return peek_function(builder, node, check, value);
    case READS_SLOT:
        return peek_unset(builder, node, check, value);
    case READS_ANYTHING:
    case READS_HANDLE:
        return false;
    }
    Py_UNREACHABLE();
}
