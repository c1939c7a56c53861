/* Dicts and types of values, read without running Python code. guard_peek.c says what is relied on. */
#include "guard_memo.h"

/* ---- keys ------------------------------------------------------------------------------------------------------------ */

bool
tf_is_plain_key(PyObject *key)
{
    if (PyTuple_CheckExact(key)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++) {
            PyObject *item = PyTuple_GET_ITEM(key, i);
            if (PyTuple_CheckExact(item) || !tf_is_plain_key(item)) {
                return false;
            }
        }
        return true;
    }
    return PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyBool_Check(key) || PyBytes_CheckExact(key)
           || PyFloat_CheckExact(key) || key == Py_None;
}

bool
tf_is_plain_lookup(PyObject *dict, PyObject *key)
{
    if (key != NULL && !tf_is_plain_key(key)) {
        return false;
    }
    if (DK_IS_UNICODE(((PyDictObject *)dict)->ma_keys)) {
        return true;
    }
    Py_ssize_t position = 0;
    PyObject *present;
    while (PyDict_Next(dict, &position, &present, NULL)) {
        if (!tf_is_plain_key(present)) {
            return false;
        }
    }
    return true;
}

PyObject *
tf_plain_item(PyObject *dict, PyObject *key)
{
    PyObject *item = PyDict_GetItemWithError(dict, key);
    PyErr_Clear();
    return item;
}

/* ---- types ----------------------------------------------------------------------------------------------------------- */

bool
tf_can_change_type(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 || PyModule_Check(value);
}

/* Whether no other type can be at the address of this one: it lives as long as the program, or a reference that tells of its death
 * is watched. */
static bool
watch_life_of_type(Builder *builder, const GuardNode *node, PyTypeObject *type)
{
    if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) {
        return true;
    }
    for (const GuardCheck *check = node->checks; check != NULL; check = check->next) {
        if (check->kind->reads == READS_TYPE && tf_referent(check->arg) == (PyObject *)type) {
            return !PyWeakref_CheckRefExact(check->arg) || tf_watch_word(builder, &((PyWeakReference *)check->arg)->wr_object);
        }
    }
    return false;
}

bool
tf_watch_type_of(Builder *builder, GuardNode *node, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (node->state == NODE_SOLID && !tf_can_change_type(value)) {
        return true;
    }
    node->pinned = true;
    return tf_watch_word(builder, &value->ob_type) && (watch_life_of_type(builder, node, type) || tf_watch_type(builder, type));
}
