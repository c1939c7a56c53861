/* Checks of what Python's lookups find: attributes along the MRO of a class, the code of a function, slots.
 *
 * These checks never run Python code. They read only what the interpreter's own lookup reads, so each of them depends on
 * containers with a version: the class (`tp_version_tag` changes with the class and with its bases) or the function.
 */
#include "treadle_frame.h"

/* ---- type_lookup ------------------------------------------------------------------------------------------------------ */

typedef enum { FACT_is, FACT_in, FACT_lacks, FACT_refers, FACT_made_of, FACT_mro } FactKind;

static const char *const fact_kind_names[] = {"is", "in", "lacks", "refers", "made_of", "mro"};

typedef struct {
    PyObject *name;             /* all borrowed from the check's argument */
    PyObject *object;           /* is: what the lookup finds; refers: a reference to it; made_of: its type and members;
                                 * in: the class that has the name; mro: the tuple of classes. Each class may be a reference */
    PyObject *after;            /* the lookup starts behind this class (or reference) of the MRO; NULL: at its beginning */
    FactKind kind;
} TypeFact;

struct TypeFacts {
    unsigned int version;       /* the version of the class for which all facts were found to hold last; 0: none */
    PyObject *type;             /* the address of that class, never followed */
    Py_ssize_t n_facts;
    TypeFact facts[];
};

/* Where the lookup starts in an MRO: behind the class `after`, at its beginning without one; -1 when the class is not in it. */
static Py_ssize_t
start_of_lookup(PyObject *mro, PyObject *after)
{
    Py_ssize_t start = 0, n = mro != NULL && PyTuple_Check(mro) ? PyTuple_GET_SIZE(mro) : -1;
    if (after == NULL) {
        return n < 0 ? -1 : 0;
    }
    after = tf_referent(after);
    while (start < n && PyTuple_GET_ITEM(mro, start) != after) {
        start++;
    }
    return start < n ? start + 1 : -1;
}

/* What the classes of an MRO have under a name, and the first class that has it (both borrowed); NULL, no error: nothing. */
static PyObject *
find_in_mro(PyObject *mro, Py_ssize_t start, PyObject *name, PyObject **owner)
{
    for (Py_ssize_t i = start; i < PyTuple_GET_SIZE(mro); i++) {
        PyObject *dict = tf_type_dict((PyTypeObject *)PyTuple_GET_ITEM(mro, i));
        PyObject *found = dict == NULL ? NULL : PyDict_GetItemWithError(dict, name);
        if (found != NULL) {
            *owner = PyTuple_GET_ITEM(mro, i);
            return found;
        }
        PyErr_Clear();
    }
    return NULL;
}

/* Whether an attribute of a class is the same read through instances, whatever happens to classes made at run time. */
static bool
is_plain_data(PyObject *found)
{
    PyTypeObject *type = Py_TYPE(found);
    /* Many types of C extensions are made at run time, and nobody can change them: re.Pattern, collections.deque from 3.12 on. */
    bool may_change = PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && !PyType_HasFeature(type, Py_TPFLAGS_IMMUTABLETYPE);
    return !may_change && type->tp_descr_get == NULL && type->tp_descr_set == NULL;
}

/* The classes of an MRO are those of a tuple of classes and references to classes. */
static bool
is_same_mro(PyObject *mro, PyObject *classes)
{
    Py_ssize_t n = PyTuple_GET_SIZE(classes);
    bool same = mro != NULL && PyTuple_Check(mro) && PyTuple_GET_SIZE(mro) == n;
    for (Py_ssize_t i = 0; i < n && same; i++) {
        same = PyTuple_GET_ITEM(mro, i) == tf_referent(PyTuple_GET_ITEM(classes, i));
    }
    return same;
}

/* The member of this name of an object, borrowed; NULL where its type, which is static, has no such member that holds an object. */
static PyObject *
member_of(PyObject *object, PyObject *name)
{
    for (const PyMemberDef *member = Py_TYPE(object)->tp_members; member != NULL && member->name != NULL; member++) {
        bool is_object = member->type == T_OBJECT || member->type == T_OBJECT_EX;
        if (is_object && PyUnicode_CompareWithASCIIString(name, member->name) == 0) {
            PyObject *held = *(PyObject **)((char *)object + member->offset);
            return held == NULL ? Py_None : held;
        }
    }
    return NULL;
}

/* A property or slot is told by what it consists of, since nothing refers to it weakly and it may hold its class. `parts`: its type, then
 * pairs (name of a member, what that holds or a reference to it). */
static bool
is_made_of(PyObject *found, PyObject *parts)
{
    bool same = (PyObject *)Py_TYPE(found) == PyTuple_GET_ITEM(parts, 0);
    for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(parts) && same; i++) {
        PyObject *pair = PyTuple_GET_ITEM(parts, i), *held = member_of(found, PyTuple_GET_ITEM(pair, 0));
        PyObject *wanted = PyTuple_GET_ITEM(pair, 1);
        same = held != NULL
               && (held == tf_referent(wanted)
                   || (PyUnicode_CheckExact(held) && PyUnicode_CheckExact(wanted) && PyUnicode_Compare(held, wanted) == 0));
    }
    return same;
}

static bool
fact_holds(PyTypeObject *type, const TypeFact *fact)
{
    PyObject *mro = type->tp_mro, *owner = NULL, *found;
    if (fact->kind == FACT_mro) {
        return is_same_mro(mro, fact->object);
    }
    if (fact->after == NULL && fact->kind != FACT_in) {
        found = _PyType_Lookup(type, fact->name);       /* the interpreter's own lookup, cached by it */
    }
    else {
        Py_ssize_t start = start_of_lookup(mro, fact->after);
        if (start < 0) {
            return false;
        }
        found = find_in_mro(mro, start, fact->name, &owner);
    }
    switch (fact->kind) {
    case FACT_is:
        return found == fact->object;
    case FACT_in:
        return found != NULL && owner == tf_referent(fact->object) && is_plain_data(found);
    case FACT_lacks:
        return found == NULL;
    case FACT_refers:
        return found != NULL && found == tf_referent(fact->object);
    case FACT_made_of:
        return found != NULL && is_made_of(found, fact->object);
    case FACT_mro:
        break;
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

static bool
is_class_or_reference(PyObject *given)
{
    return PyType_Check(given) || PyWeakref_CheckRefExact(given);
}

/* Whether an object is a tuple of a static type and pairs whose first item is a str. */
static bool
is_list_of_parts(PyObject *given)
{
    bool good = PyTuple_Check(given) && PyTuple_GET_SIZE(given) >= 1 && PyType_Check(PyTuple_GET_ITEM(given, 0))
                && !PyType_HasFeature((PyTypeObject *)PyTuple_GET_ITEM(given, 0), Py_TPFLAGS_HEAPTYPE);
    for (Py_ssize_t i = 1; good && i < PyTuple_GET_SIZE(given); i++) {
        PyObject *pair = PyTuple_GET_ITEM(given, i);
        good = PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2 && PyUnicode_Check(PyTuple_GET_ITEM(pair, 0));
    }
    return good;
}

static bool
is_object_of_kind(int kind, PyObject *given)
{
    switch (kind) {
    case FACT_in:
        return is_class_or_reference(given);
    case FACT_refers:
        return PyWeakref_CheckRefExact(given);
    case FACT_made_of:
        return is_list_of_parts(given);
    case FACT_mro:
        return PyTuple_Check(given);
    default:
        return kind >= 0;
    }
}

static int
fill_fact(TypeFact *fact, PyObject *given)
{
    Py_ssize_t n = PyTuple_Check(given) ? PyTuple_GET_SIZE(given) : 0;
    if ((n != 3 && n != 4) || !PyUnicode_CheckExact(PyTuple_GET_ITEM(given, 0)) || !PyUnicode_Check(PyTuple_GET_ITEM(given, 1))
        || (n == 4 && !is_class_or_reference(PyTuple_GET_ITEM(given, 3)))) {
        return -1;
    }
    int kind = -1;
    for (int i = 0; i <= FACT_mro; i++) {
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(given, 1), fact_kind_names[i]) == 0) {
            kind = i;
        }
    }
    if (!is_object_of_kind(kind, PyTuple_GET_ITEM(given, 2))) {
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
        PyErr_Format(tf_guard_error, "%U: the argument must be a tuple of facts (name, \"is\" | \"in\" | \"lacks\" | \"refers\" | \"made_of\" | \"mro\", object) or "
                     "(name, kind, object, class after which the lookup starts), not %R", where, check->arg);
        return -1;
    }
    return 0;
}

/* ---- function_code ------------------------------------------------------------------------------------------------------ */

/* The argument: (reference to the code object, number of defaults, names of keyword-only defaults). The code object is referred to weakly:
 * an entry lives in a code object, and guards of recursive functions name that very one. */
int
tf_test_function_code(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    if (!PyFunction_Check(value) || PyFunction_GET_CODE(value) != PyWeakref_GET_OBJECT(PyTuple_GET_ITEM(check->arg, 0))) {
        return 0;
    }
    PyObject *defaults = PyFunction_GET_DEFAULTS(value), *keyword = PyFunction_GET_KW_DEFAULTS(value);
    PyObject *names = PyTuple_GET_ITEM(check->arg, 2);
    Py_ssize_t n = defaults != NULL && PyTuple_Check(defaults) ? PyTuple_GET_SIZE(defaults) : 0;
    Py_ssize_t n_keyword = keyword != NULL && PyDict_Check(keyword) ? PyDict_GET_SIZE(keyword) : 0;
    if (n != check->number || n_keyword != PyTuple_GET_SIZE(names)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < n_keyword; i++) {
        int has = PyDict_Contains(keyword, PyTuple_GET_ITEM(names, i));
        if (has != 1) {
            return has;
        }
    }
    return 1;
}

int
tf_prepare_function_code(GuardCheck *check, PyObject *where)
{
    PyObject *arg = check->arg;
    bool good = PyTuple_Check(arg) && PyTuple_GET_SIZE(arg) == 3 && PyWeakref_CheckRefExact(PyTuple_GET_ITEM(arg, 0))
                && PyLong_CheckExact(PyTuple_GET_ITEM(arg, 1)) && PyTuple_Check(PyTuple_GET_ITEM(arg, 2));
    check->number = good ? PyLong_AsSsize_t(PyTuple_GET_ITEM(arg, 1)) : -1;
    PyErr_Clear();
    if (check->number < 0) {
        PyErr_Format(tf_guard_error, "%U: the argument must be (weakref.ref of a code object, number of defaults, tuple of names of "
                     "keyword-only defaults), not %R", where, arg);
        return -1;
    }
    return 0;
}

/* ---- slots ------------------------------------------------------------------------------------------------------------- */

PyObject *
tf_slot_descriptor(PyObject *slot)
{
    if (!PyTuple_Check(slot)) {
        return slot;
    }
    PyObject *cls = tf_referent(PyTuple_GET_ITEM(slot, 0));
    PyObject *dict = cls != NULL && PyType_Check(cls) ? tf_type_dict((PyTypeObject *)cls) : NULL;
    PyObject *found = dict == NULL ? NULL : PyDict_GetItemWithError(dict, PyTuple_GET_ITEM(slot, 1));
    PyErr_Clear();
    return found != NULL && (Py_TYPE(found) == &PyMemberDescr_Type || Py_TYPE(found) == &PyGetSetDescr_Type) ? found : NULL;
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
    PyObject *descriptor = Py_XNewRef(tf_slot_descriptor(check->arg));
    if (descriptor == NULL) {
        return 0;
    }
    PyObject *found = tf_descriptor_value(descriptor, value);
    Py_DECREF(descriptor);
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
    PyObject *arg = check->arg;
    bool is_pair = PyTuple_Check(arg) && PyTuple_GET_SIZE(arg) == 2 && PyWeakref_CheckRefExact(PyTuple_GET_ITEM(arg, 0))
                   && PyUnicode_CheckExact(PyTuple_GET_ITEM(arg, 1));
    bool good = is_pair || Py_TYPE(arg) == &PyMemberDescr_Type || Py_TYPE(arg) == &PyGetSetDescr_Type;
    return tf_check_require(good, check, where,
                            "a member or getset descriptor, or a pair (weakref.ref of a class, name of one in its dict)");
}
