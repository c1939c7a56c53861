/* The single checks of guard programs, as a table (`tf_check_kinds`, near the end): how the argument is prepared, how a
 * value is tested, where further paths stand, what the outcome depends on. Checks of what lookups find are in guard_facts.c, those that
 * ask a C library in guard_native.c.
 *
 * A test returns 1 (holds), 0 (fails) or -1 (an exception that is no Exception is set); ordinary exceptions are cleared
 * and mean "fails". The value is held by the caller.
 */
#include "treadle_frame.h"
#include <string.h>

/* ---- equality ------------------------------------------------------------------------------------------------------- */

/* Equal objects have equal hashes. Tensors, which are dictionary keys by identity, are told apart so: their `==` gives a tensor. */
static int
hashes_differ(PyObject *left, PyObject *right)
{
    Py_hash_t a = PyObject_Hash(left), b = a == -1 ? -1 : PyObject_Hash(right);
    if (b == -1) {
        PyErr_Clear();
        return 0;
    }
    return a != b;
}

/* Same type and `==`, but floats by their bits (0.0 is not -0.0, a nan is itself), also inside tuples and lists. */
int
tf_same_value(PyObject *left, PyObject *right)
{
    if (left == right) {
        return 1;
    }
    if (Py_TYPE(left) != Py_TYPE(right)) {
        return 0;
    }
    if (PyFloat_CheckExact(left)) {
        double a = PyFloat_AS_DOUBLE(left), b = PyFloat_AS_DOUBLE(right);
        return memcmp(&a, &b, sizeof a) == 0;
    }
    if (PyComplex_CheckExact(left)) {
        Py_complex a = PyComplex_AsCComplex(left), b = PyComplex_AsCComplex(right);
        return memcmp(&a.real, &b.real, sizeof a.real) == 0 && memcmp(&a.imag, &b.imag, sizeof a.imag) == 0;
    }
    if (!PyTuple_CheckExact(left) && !PyList_CheckExact(left)) {
        int is_plain = PyUnicode_CheckExact(left) || PyLong_CheckExact(left);
        if (!is_plain && hashes_differ(left, right)) {
            return 0;
        }
        return PyObject_RichCompareBool(left, right, Py_EQ);
    }
    if (Py_EnterRecursiveCall(" while comparing guarded values")) {
        return -1;
    }
    int same = Py_SIZE(left) == Py_SIZE(right);
    for (Py_ssize_t i = 0; same == 1 && i < Py_SIZE(left) && i < Py_SIZE(right); i++) {
        PyObject *a = Py_NewRef(PySequence_Fast_GET_ITEM(left, i)), *b = Py_NewRef(PySequence_Fast_GET_ITEM(right, i));
        same = tf_same_value(a, b);
        Py_DECREF(a);
        Py_DECREF(b);
    }
    Py_LeaveRecursiveCall();
    return same;
}

/* ---- tests ----------------------------------------------------------------------------------------------------------- */

static int
truth_of_call(PyObject *result)
{
    if (result == NULL) {
        return -1;
    }
    int truth = PyObject_IsTrue(result);
    Py_DECREF(result);
    return truth;
}

static int
test_is(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    return value == check->arg;
}

static int
test_is_not(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    return value != check->arg;
}

/* Identity without keeping the object alive: a dead reference matches nothing, not even None. */
static int
test_refers(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    return value == tf_referent(check->arg);
}

static int
test_type_is(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    return (PyObject *)Py_TYPE(value) == tf_referent(check->arg);
}

static int
test_equals(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    return tf_same_value(check->arg, value);
}

static int
test_len(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    /* Of a subclass too, the number of items that it holds: what its `__len__` says is traced. */
    Py_ssize_t length = PyTuple_Check(value) || PyList_Check(value) ? Py_SIZE(value)
                        : PyDict_Check(value)                       ? PyDict_GET_SIZE(value)
                        : PyAnySet_Check(value)                     ? PySet_GET_SIZE(value)
                                                                    : PyObject_Size(value);
    return length < 0 ? -1 : length == check->number;
}

/* Keys of classes that Python code defines are the same object: their `__eq__` says nothing about what a program sees in them. */
static int
same_key(PyObject *left, PyObject *right)
{
    if (left == right) {
        return 1;
    }
    if (PyTuple_CheckExact(left) && PyTuple_CheckExact(right)) {
        int same = PyTuple_GET_SIZE(left) == PyTuple_GET_SIZE(right);
        for (Py_ssize_t i = 0; same == 1 && i < PyTuple_GET_SIZE(left); i++) {
            same = same_key(PyTuple_GET_ITEM(left, i), PyTuple_GET_ITEM(right, i));
        }
        return same;
    }
    bool by_identity = PyType_HasFeature(Py_TYPE(left), Py_TPFLAGS_HEAPTYPE) || PyAnySet_Check(left);
    return by_identity ? 0 : tf_same_value(left, right);
}

static int
test_dict_keys(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    Py_ssize_t n = PyTuple_GET_SIZE(check->arg);
    if (!PyDict_Check(value) || PyDict_GET_SIZE(value) != n) {
        return 0;
    }
    if (!PyDict_CheckExact(value)) {
        PyObject *iterator = tf_key_iterator(value);
        PyObject *keys = iterator == NULL ? NULL : PySequence_Tuple(iterator);
        Py_XDECREF(iterator);
        int same = keys == NULL ? -1 : same_key(keys, check->arg);
        Py_XDECREF(keys);
        return same;
    }
    Py_ssize_t position = 0, i = 0;
    PyObject *key;
    while (PyDict_Next(value, &position, &key, NULL)) {
        Py_INCREF(key);
        int same = i < n ? same_key(PyTuple_GET_ITEM(check->arg, i), key) : 0;
        Py_DECREF(key);
        if (same != 1) {
            return same;
        }
        i++;
    }
    return i == n;
}

static int
test_has_attr(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    PyObject *found = NULL;
    int has = tf_lookup_attr(value, check->arg, &found);
    Py_XDECREF(found);
    return has;
}

static int
test_lacks_attr(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    int has = test_has_attr(check, value, others);
    return has < 0 ? -1 : !has;
}

static int
test_has_key(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    return PyDict_Check(value) ? PyDict_Contains(value, check->arg) : PySequence_Contains(value, check->arg);
}

static int
test_lacks_key(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    int has = test_has_key(check, value, others);
    return has < 0 ? -1 : !has;
}

static int
test_call(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    return truth_of_call(PyObject_CallOneArg(check->arg, value));
}

static int
test_capsule(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    return check->function(value, check->context) != 0;
}

static int
test_same_object(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    return value == others[0];
}

static int
compare_addresses(const void *left, const void *right)
{
    uintptr_t a = *(const uintptr_t *)left, b = *(const uintptr_t *)right;
    return (a > b) - (a < b);
}

static int
test_distinct_objects(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    size_t n = (size_t)check->n_others + 1;
    uintptr_t on_stack[TF_MAX_CAPTURES_ON_STACK];
    uintptr_t *addresses = n <= TF_MAX_CAPTURES_ON_STACK ? on_stack : PyMem_Malloc(n * sizeof(uintptr_t));
    if (addresses == NULL) {
        return 0;
    }
    addresses[0] = (uintptr_t)value;
    for (size_t i = 1; i < n; i++) {
        addresses[i] = (uintptr_t)others[i - 1];
    }
    qsort(addresses, n, sizeof(uintptr_t), compare_addresses);
    int distinct = 1;
    for (size_t i = 1; i < n; i++) {
        distinct &= addresses[i] != addresses[i - 1];
    }
    if (addresses != on_stack) {
        PyMem_Free(addresses);
    }
    return distinct;
}

static int
test_call_many(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    PyObject *args = PyTuple_New(check->n_others + 1);
    if (args == NULL) {
        return -1;
    }
    PyTuple_SET_ITEM(args, 0, Py_NewRef(value));
    for (Py_ssize_t i = 0; i < check->n_others; i++) {
        PyTuple_SET_ITEM(args, i + 1, Py_NewRef(others[i]));
    }
    int truth = truth_of_call(PyObject_CallObject(PyTuple_GET_ITEM(check->arg, 0), args));
    Py_DECREF(args);
    return truth;
}

/* ---- preparing arguments ----------------------------------------------------------------------------------------------- */

int
tf_check_require(bool good, GuardCheck *check, PyObject *where, const char *wanted)
{
    if (!good) {
        PyErr_Format(tf_guard_error, "%U: the argument must be %s, not %R", where, wanted, check->arg);
    }
    return good ? 0 : -1;
}

static int
prepare_nothing(GuardCheck *check, PyObject *where)
{
    return 0;
}

static int
prepare_type(GuardCheck *check, PyObject *where)
{
    return tf_check_require(PyType_Check(check->arg) || PyWeakref_CheckRefExact(check->arg), check, where, "a type or a weakref.ref of one");
}

static int
prepare_weakref(GuardCheck *check, PyObject *where)
{
    return tf_check_require(PyWeakref_CheckRefExact(check->arg), check, where, "a weakref.ref");
}

static int
prepare_length(GuardCheck *check, PyObject *where)
{
    check->number = PyLong_CheckExact(check->arg) ? PyLong_AsSsize_t(check->arg) : -1;
    if (check->number < 0) {
        PyErr_Clear();
    }
    return tf_check_require(check->number >= 0, check, where, "an int >= 0");
}

static int
prepare_tuple(GuardCheck *check, PyObject *where)
{
    return tf_check_require(PyTuple_Check(check->arg), check, where, "a tuple");
}

static int
prepare_name(GuardCheck *check, PyObject *where)
{
    return tf_check_require(PyUnicode_Check(check->arg), check, where, "a str");
}

static int
prepare_callable(GuardCheck *check, PyObject *where)
{
    return tf_check_require(PyCallable_Check(check->arg), check, where, "a callable");
}

static int
prepare_capsule(GuardCheck *check, PyObject *where)
{
    bool pair = PyTuple_Check(check->arg) && PyTuple_GET_SIZE(check->arg) == 2;
    bool good = pair && PyCapsule_IsValid(PyTuple_GET_ITEM(check->arg, 0), "treadle_frame.check")
                && PyLong_Check(PyTuple_GET_ITEM(check->arg, 1));
    if (tf_check_require(good, check, where, "a pair (capsule named \"treadle_frame.check\", context address as int)") < 0) {
        return -1;
    }
    *(void **)&check->function = PyCapsule_GetPointer(PyTuple_GET_ITEM(check->arg, 0), "treadle_frame.check");
    check->context = PyLong_AsVoidPtr(PyTuple_GET_ITEM(check->arg, 1));
    return check->context == NULL && PyErr_Occurred() ? -1 : 0;
}

/* A pair (callable, paths). */
static int
prepare_call_many(GuardCheck *check, PyObject *where)
{
    bool pair = PyTuple_Check(check->arg) && PyTuple_GET_SIZE(check->arg) == 2;
    return tf_check_require(pair && PyCallable_Check(PyTuple_GET_ITEM(check->arg, 0)), check, where, "a pair (callable, paths)");
}

/* ---- the table --------------------------------------------------------------------------------------------------------- */

const CheckKind tf_check_kinds[] = {
    {"is", prepare_nothing, test_is, PATHS_NONE, READS_ANCHOR},
    {"is_not", prepare_nothing, test_is_not, PATHS_NONE, READS_IDENTITY},
    {"refers", prepare_weakref, test_refers, PATHS_NONE, READS_ANCHOR},
    {"type_is", prepare_type, test_type_is, PATHS_NONE, READS_TYPE},
    {"equals", prepare_nothing, test_equals, PATHS_NONE, READS_VALUE},
    {"type_lookup", tf_prepare_type_lookup, tf_test_type_lookup, PATHS_NONE, READS_LOOKUP},
    {"function_code", tf_prepare_function_code, tf_test_function_code, PATHS_NONE, READS_FUNCTION},
    {"unset", tf_prepare_unset, tf_test_unset, PATHS_NONE, READS_SLOT},
    {"len", prepare_length, test_len, PATHS_NONE, READS_LENGTH},
    {"dict_keys", prepare_tuple, test_dict_keys, PATHS_NONE, READS_KEYS},
    {"has_attr", prepare_name, test_has_attr, PATHS_NONE, READS_ATTRIBUTE},
    {"lacks_attr", prepare_name, test_lacks_attr, PATHS_NONE, READS_ATTRIBUTE},
    {"lacks_key", prepare_nothing, test_lacks_key, PATHS_NONE, READS_KEYS},
    {"has_key", prepare_nothing, test_has_key, PATHS_NONE, READS_KEYS},
    {"call", prepare_callable, test_call, PATHS_NONE},
    {"capsule", prepare_capsule, test_capsule, PATHS_NONE},
    {"native_tensor", tf_prepare_native_tensor, tf_test_native_tensor, PATHS_NONE, READS_HANDLE},
    {"same_object", prepare_tuple, test_same_object, PATHS_ARGUMENT, READS_IDENTITY},
    {"distinct_objects", prepare_nothing, test_distinct_objects, PATHS_IN_ARGUMENT, READS_IDENTITY},
    {"call_many", prepare_call_many, test_call_many, PATHS_IN_SECOND},
    {"equal_items", tf_prepare_equal_items, tf_test_equal_items, PATHS_IN_SECOND},
};
const size_t tf_n_check_kinds = sizeof tf_check_kinds / sizeof tf_check_kinds[0];

int
tf_check_test(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    int holds = check->kind->test(check, value, others);
    return holds < 0 ? tf_clear_ordinary_error() : holds;
}

void
tf_check_free_argument(GuardCheck *check)
{
    tf_native_free(check);
    PyMem_Free(check->type_facts);
    check->type_facts = NULL;
}

size_t
tf_check_size(const GuardCheck *check)
{
    return (size_t)check->n_others * sizeof(GuardNode *) + tf_native_size(check);
}
