/* Checks of what Python's lookups find: attributes along the MRO of a class, the code of a function, slots.
 *
 * These checks never run Python code. They read only what the interpreter's own lookup reads, so each of them depends on
 * containers with a version: the class (`tp_version_tag` changes with the class and with its bases) or the function.
 */
#include "treadle_frame.h"

/* ---- type_lookup ------------------------------------------------------------------------------------------------------ */

typedef enum { FACT_is, FACT_in, FACT_lacks } FactKind;

static const char *const fact_kind_names[] = {"is", "in", "lacks"};

typedef struct {
    PyObject *name;             /* all borrowed from the check's argument */
    PyObject *object;           /* is: what the lookup finds; in: the class that has the name; lacks: NULL */
    PyObject *after;            /* the lookup starts behind this class of the MRO; NULL: at its beginning */
    FactKind kind;
} TypeFact;

struct TypeFacts {
    unsigned int version;       /* the version of the class for which all facts were found to hold last; 0: none */
    PyObject *type;             /* the address of that class, never followed */
    Py_ssize_t n_facts;
    TypeFact facts[];
};

/* The class of an MRO that has the name, and what it has (both borrowed); NULL where no class has it, with or without an error. */
static PyObject *
find_in_mro(PyObject *mro, PyObject *after, PyObject *name, PyObject **owner)
{
    Py_ssize_t start = 0, n = PyTuple_GET_SIZE(mro);
    if (after != NULL) {
        while (start < n && PyTuple_GET_ITEM(mro, start) != after) {
            start++;
        }
        start++;
    }
    for (Py_ssize_t i = start; i < n; i++) {
        PyObject *dict = tf_type_dict((PyTypeObject *)PyTuple_GET_ITEM(mro, i));
        PyObject *found = dict == NULL ? NULL : PyDict_GetItemWithError(dict, name);
        if (found != NULL || PyErr_Occurred()) {
            *owner = PyTuple_GET_ITEM(mro, i);
            return found;
        }
    }
    return NULL;
}

static bool
fact_holds(PyTypeObject *type, const TypeFact *fact)
{
    PyObject *mro = type->tp_mro, *owner = NULL, *found;
    if (fact->after == NULL && fact->kind != FACT_in) {
        found = _PyType_Lookup(type, fact->name);       /* the interpreter's own lookup, cached by it */
    }
    else {
        if (mro == NULL || !PyTuple_Check(mro)) {
            return false;
        }
        found = find_in_mro(mro, fact->after, fact->name, &owner);
        if (found == NULL) {
            PyErr_Clear();
        }
    }
    switch (fact->kind) {
    case FACT_is:
        return found == fact->object;
    case FACT_in:
        return found != NULL && owner == fact->object;
    case FACT_lacks:
        return found == NULL;
    }
    Py_UNREACHABLE();
}

int
tf_test_type_lookup(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    TypeFacts *facts = check->type_facts;
    if (!PyType_Check(value)) {
        return 0;
    }
    PyTypeObject *type = (PyTypeObject *)value;
    unsigned int version = tf_type_version(type);
    if (version != 0 && version == facts->version && facts->type == value) {
        return 1;
    }
    for (Py_ssize_t i = 0; i < facts->n_facts; i++) {
        if (!fact_holds(type, &facts->facts[i])) {
            return 0;
        }
    }
    facts->version = tf_type_version(type);     /* a lookup may have given the class its version */
    facts->type = value;
    return 1;
}

static int
fill_fact(TypeFact *fact, PyObject *given)
{
    Py_ssize_t n = PyTuple_Check(given) ? PyTuple_GET_SIZE(given) : 0;
    if ((n != 3 && n != 4) || !PyUnicode_CheckExact(PyTuple_GET_ITEM(given, 0)) || !PyUnicode_Check(PyTuple_GET_ITEM(given, 1))
        || (n == 4 && !PyType_Check(PyTuple_GET_ITEM(given, 3)))) {
        return -1;
    }
    int kind = -1;
    for (int i = 0; i <= FACT_lacks; i++) {
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(given, 1), fact_kind_names[i]) == 0) {
            kind = i;
        }
    }
    if (kind < 0) {
        return -1;
    }
    fact->name = PyTuple_GET_ITEM(given, 0);
    fact->kind = (FactKind)kind;
    fact->object = kind == FACT_lacks ? NULL : PyTuple_GET_ITEM(given, 2);
    fact->after = n == 4 ? PyTuple_GET_ITEM(given, 3) : NULL;
    return 0;
}

int
tf_prepare_type_lookup(GuardCheck *check, PyObject *where)
{
    Py_ssize_t n = PyTuple_Check(check->arg) ? PyTuple_GET_SIZE(check->arg) : -1;
    TypeFacts *facts = n < 0 ? NULL : PyMem_Calloc(1, sizeof(TypeFacts) + (size_t)n * sizeof(TypeFact));
    if (n >= 0 && facts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    check->type_facts = facts;
    bool good = n >= 0;
    for (Py_ssize_t i = 0; i < n && good; i++) {
        good = fill_fact(&facts->facts[i], PyTuple_GET_ITEM(check->arg, i)) == 0;
        facts->n_facts = i + 1;
    }
    if (!good) {
        PyErr_Format(tf_guard_error, "%U: the argument must be a tuple of facts (name, \"is\" | \"in\" | \"lacks\", object) or "
                     "(name, kind, object, class after which the lookup starts), not %R", where, check->arg);
        return -1;
    }
    return 0;
}

/* ---- function_code ------------------------------------------------------------------------------------------------------ */

/* The code object is referred to weakly: an entry lives in a code object, and guards of recursive functions name that very one. */
int
tf_test_function_code(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    return PyFunction_Check(value) && PyFunction_GET_CODE(value) == PyWeakref_GET_OBJECT(check->arg);
}

/* ---- unset ------------------------------------------------------------------------------------------------------------- */

PyObject *
tf_descriptor_value(PyObject *descriptor, PyObject *owner)
{
    descrgetfunc get = Py_TYPE(descriptor)->tp_descr_get;
    return get == NULL ? NULL : get(descriptor, owner, (PyObject *)Py_TYPE(owner));
}

int
tf_test_unset(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    PyObject *found = tf_descriptor_value(check->arg, value);
    if (found != NULL) {
        Py_DECREF(found);
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return -1;
    }
    PyErr_Clear();
    return 1;
}

int
tf_prepare_unset(GuardCheck *check, PyObject *where)
{
    if (Py_TYPE(check->arg) != &PyMemberDescr_Type && Py_TYPE(check->arg) != &PyGetSetDescr_Type) {
        PyErr_Format(tf_guard_error, "%U: the argument must be a member or getset descriptor, not %R", where, check->arg);
        return -1;
    }
    return 0;
}
