/* The versions of dicts, by which the memo of a guard program knows that a dict has not changed (guard_memo.c).
 *
 * Every change of a dict moves its version, with one exception: since 3.13 the values of an instance may lie in the instance itself, and its
 * dict, once somebody has asked for it, refers to them. A store to an attribute then writes the value past the dict, and tells nobody:
 *
 *     instance [ dict pointer | inline values ] <---- `instance.a = 1` (store_instance_attr_lock_held in CPython's Objects/dictobject.c)
 *                  |              ^
 *                  v              | ma_values, `embedded`
 *                 dict -----------'                  `dict["a"] = 1` moves the version as ever
 *
 * Such a dict is given a table of its own, as CPython itself does when it needs one (after a 31st attribute, a `popitem`): keys, values, their
 * order and the dict's identity stay, iterators stay where they are, and stores go through the dict from then on. Attributes are found as
 * fast in a table of the dict's own as in the instance.
 */
#include "treadle_frame.h"

#if PY_VERSION_HEX >= 0x030D0000

static bool
has_inline_values(PyObject *dict)
{
    PyDictValues *values = ((PyDictObject *)dict)->ma_values;
    return values != NULL && values->embedded;
}

/* `popitem` makes the table, and it has room for the item, so that putting it back cannot fail. */
static void
make_table(PyObject *dict)
{
    PyObject *last = PyObject_CallMethod(dict, "popitem", NULL);
    if (last != NULL && PyDict_SetItem(dict, PyTuple_GET_ITEM(last, 0), PyTuple_GET_ITEM(last, 1)) < 0) {
        PyErr_WriteUnraisable(dict);
    }
    Py_XDECREF(last);
}

/* Of an empty dict, a key that is no str makes it. */
static void
make_empty_table(PyObject *dict)
{
    if (PyDict_SetItem(dict, Py_None, Py_None) == 0) {
        PyDict_Clear(dict);
    }
}

bool
tf_dict_version_is_reliable(PyObject *dict)
{
    if (has_inline_values(dict) && PyDict_CheckExact(dict)) {
        PyDict_GET_SIZE(dict) == 0 ? make_empty_table(dict) : make_table(dict);
        PyErr_Clear();
    }
    return !has_inline_values(dict);
}

#else

bool
tf_dict_version_is_reliable(PyObject *dict)
{
    return true;
}

#endif
