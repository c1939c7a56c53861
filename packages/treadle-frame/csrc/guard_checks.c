/* The single checks of guard programs, as a table (`tf_check_kinds`, near the end): how the argument is prepared, how a
 * value is tested, where further paths stand, what the outcome depends on.
 *
 * A test returns 1 (holds), 0 (fails) or -1 (an exception that is no Exception is set); ordinary exceptions are cleared
 * and mean "fails". The value is held by the caller.
 */
#include "treadle_frame.h"
#include <string.h>

typedef int32_t (*NativeFunction)(void *handle, void *out);

typedef enum { KIND_i32, KIND_i64, KIND_bool, KIND_i64_array, KIND_layout } NativeKind;

static const char *const native_kind_names[] = {"i32", "i64", "bool", "i64_array", "layout"};

typedef struct {
    NativeFunction function;
    NativeFunction sizes;      /* layout: a second function */
    NativeKind kind;
    Py_ssize_t n_expected;      /* i64_array, layout: length; others: 1 */
    int64_t *lower, *upper;     /* owned: the interval of each element */
    int64_t *chain;             /* owned, layout only: the dimension whose extent the stride is, or -1 */
} NativeQuery;

struct NativeTest {
    PyObject *types;            /* borrowed from the check's argument: a type or a tuple of types */
    Py_ssize_t handle_offset;
    Py_ssize_t n_queries;
    NativeQuery queries[];
};

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
    return value != Py_None && value == PyWeakref_GET_OBJECT(check->arg);
}

static int
test_type_is(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    return (PyObject *)Py_TYPE(value) == check->arg;
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
        PyObject *keys = PySequence_Tuple(value);
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

/* ---- native_tensor: queries through a C ABI --------------------------------------------------------------------------- */

static inline bool
in_interval(const NativeQuery *query, Py_ssize_t i, int64_t value)
{
    return query->lower[i] <= value && value <= query->upper[i];
}

/* Whether each stride is in its interval, or is the size of another dimension times its stride. */
static bool
has_layout(const NativeQuery *query, const int64_t *strides, void *handle)
{
    int64_t *sizes = NULL;
    if (query->sizes(handle, &sizes) != 0) {
        return false;
    }
    for (Py_ssize_t i = 0; i < query->n_expected; i++) {
        int64_t inner = query->chain[i], extent;
        if (inner < 0) {
            if (!in_interval(query, i, strides[i])) {
                return false;
            }
        }
        else if (__builtin_mul_overflow(sizes[inner] > 1 ? sizes[inner] : 1, strides[inner], &extent)
                 || strides[i] != extent) {
            return false;
        }
    }
    return true;
}

static bool
query_holds(const NativeQuery *query, void *handle)
{
    union {
        int32_t i32;
        int64_t i64;
        bool boolean;
        int64_t *array;
    } out = {.i64 = 0};
    if (query->function(handle, &out) != 0) {
        return false;
    }
    switch (query->kind) {
    case KIND_i32:
        return in_interval(query, 0, out.i32);
    case KIND_i64:
        return in_interval(query, 0, out.i64);
    case KIND_bool:
        return in_interval(query, 0, out.boolean);
    case KIND_i64_array:
        for (Py_ssize_t i = 0; i < query->n_expected; i++) {
            if (!in_interval(query, i, out.array[i])) {
                return false;
            }
        }
        return true;
    case KIND_layout:
        return has_layout(query, out.array, handle);
    }
    Py_UNREACHABLE();
}

/* Whether the value's type is exactly `types`, or one of that tuple. */
static bool
is_of_types(PyObject *value, PyObject *types)
{
    PyObject *type = (PyObject *)Py_TYPE(value);
    bool known = type == types;
    if (!known && PyTuple_Check(types)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types) && !known; i++) {
            known = type == PyTuple_GET_ITEM(types, i);
        }
    }
    return known;
}

static int
test_native_tensor(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    const NativeTest *test = check->native;
    if (!is_of_types(value, test->types)) {
        return 0;
    }
    void *handle = (char *)value + test->handle_offset;
    for (Py_ssize_t i = 0; i < test->n_queries; i++) {
        if (!query_holds(&test->queries[i], handle)) {
            return 0;
        }
    }
    return 1;
}

static void
free_native_test(NativeTest *test)
{
    for (Py_ssize_t i = 0; test != NULL && i < test->n_queries; i++) {
        PyMem_Free(test->queries[i].lower);
        PyMem_Free(test->queries[i].upper);
        PyMem_Free(test->queries[i].chain);
    }
    PyMem_Free(test);
}

/* An address given as an int; NULL with an error set. */
static void *
address_from(PyObject *number, PyObject *where, const char *what)
{
    void *address = PyLong_Check(number) ? PyLong_AsVoidPtr(number) : NULL;
    if (address == NULL && !PyErr_Occurred()) {
        PyErr_Format(tf_guard_error, "%U: %s must be a non-zero address (an int), not %R", where, what, number);
    }
    return address;
}

static int
fill_bound(PyObject *item, int64_t open_end, int64_t *bound, PyObject *where)
{
    *bound = open_end;
    if (item == Py_None) {
        return 0;
    }
    if (!PyLong_Check(item)) {
        PyErr_Format(tf_guard_error, "%U: an expected value must be an int, None or a pair (lower, upper) of these, not %R",
                     where, item);
        return -1;
    }
    *bound = PyLong_AsLongLong(item);
    return *bound == -1 && PyErr_Occurred() ? -1 : 0;
}

static int
fill_interval(NativeQuery *query, Py_ssize_t i, PyObject *item, PyObject *where)
{
    PyObject *lower = item, *upper = item;
    if (PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 2) {
        lower = PyTuple_GET_ITEM(item, 0);
        upper = PyTuple_GET_ITEM(item, 1);
    }
    if (fill_bound(lower, INT64_MIN, &query->lower[i], where) < 0) {
        return -1;
    }
    return fill_bound(upper, INT64_MAX, &query->upper[i], where);
}

/* layout: (address of the function that gives the sizes, tuple of what is expected of each stride) */
static PyObject *
fill_layout(NativeQuery *query, PyObject *expected, PyObject *where)
{
    if (!PyTuple_Check(expected) || PyTuple_GET_SIZE(expected) != 2 || !PyTuple_Check(PyTuple_GET_ITEM(expected, 1))) {
        PyErr_Format(tf_guard_error, "%U: the expected value of a layout query must be (address, tuple), not %R", where,
                     expected);
        return NULL;
    }
    *(void **)&query->sizes = address_from(PyTuple_GET_ITEM(expected, 0), where, "the function that gives the sizes");
    return query->sizes == NULL ? NULL : PyTuple_GET_ITEM(expected, 1);
}

/* An element (dimension,) of a layout. */
static int
fill_chain(NativeQuery *query, Py_ssize_t i, PyObject *item, PyObject *where)
{
    PyObject *inner = PyTuple_GET_ITEM(item, 0);
    query->chain[i] = PyLong_Check(inner) ? PyLong_AsLongLong(inner) : -1;
    PyErr_Clear();
    if (query->chain[i] < 0 || query->chain[i] >= query->n_expected) {
        PyErr_Format(tf_guard_error, "%U: (dimension,) in a layout query must name one of 0 to %zd, not %R", where,
                     query->n_expected - 1, item);
        return -1;
    }
    return 0;
}

static int
fill_expected(NativeQuery *query, PyObject *expected, PyObject *where)
{
    bool layout = query->kind == KIND_layout, array = layout || query->kind == KIND_i64_array;
    if (layout && (expected = fill_layout(query, expected, where)) == NULL) {
        return -1;
    }
    if (array && !PyTuple_Check(expected)) {
        PyErr_Format(tf_guard_error, "%U: the expected value of an i64_array query must be a tuple, not %R", where,
                     expected);
        return -1;
    }
    query->n_expected = array ? PyTuple_GET_SIZE(expected) : 1;
    query->lower = PyMem_Calloc((size_t)query->n_expected + 1, sizeof(int64_t));
    query->upper = PyMem_Calloc((size_t)query->n_expected + 1, sizeof(int64_t));
    query->chain = PyMem_Calloc((size_t)query->n_expected + 1, sizeof(int64_t));
    if (query->lower == NULL || query->upper == NULL || query->chain == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < query->n_expected; i++) {
        PyObject *item = array ? PyTuple_GET_ITEM(expected, i) : expected;
        bool chained = layout && PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 1;
        query->chain[i] = -1;
        if ((chained ? fill_chain(query, i, item, where) : fill_interval(query, i, item, where)) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
fill_query(NativeQuery *query, PyObject *given, PyObject *where)
{
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != 3) {
        PyErr_Format(tf_guard_error, "%U: a query must be a tuple (address, kind, expected), not %R", where, given);
        return -1;
    }
    *(void **)&query->function = address_from(PyTuple_GET_ITEM(given, 0), where, "a query's function");
    if (query->function == NULL) {
        return -1;
    }
    PyObject *kind = PyTuple_GET_ITEM(given, 1);
    int found = -1;
    for (int i = 0; i <= KIND_layout; i++) {
        if (PyUnicode_Check(kind) && PyUnicode_CompareWithASCIIString(kind, native_kind_names[i]) == 0) {
            found = i;
        }
    }
    if (found < 0) {
        PyErr_Format(tf_guard_error, "%U: a query's kind must be i32, i64, bool, i64_array or layout, not %R", where, kind);
        return -1;
    }
    query->kind = (NativeKind)found;
    return fill_expected(query, PyTuple_GET_ITEM(given, 2), where);
}

static bool
is_type_or_types(PyObject *types)
{
    if (PyType_Check(types)) {
        return true;
    }
    bool all = PyTuple_Check(types) && PyTuple_GET_SIZE(types) > 0;
    for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(types); i++) {
        all = PyType_Check(PyTuple_GET_ITEM(types, i));
    }
    return all;
}

static int
prepare_native_tensor(GuardCheck *check, PyObject *where)
{
    PyObject *given = check->arg;
    Py_ssize_t parts = PyTuple_Check(given) ? PyTuple_GET_SIZE(given) : 0;
    if ((parts != 3 && parts != 4) || !is_type_or_types(PyTuple_GET_ITEM(given, 0))
        || !PyLong_Check(PyTuple_GET_ITEM(given, 1)) || !PyTuple_Check(PyTuple_GET_ITEM(given, 2))) {
        PyErr_Format(tf_guard_error, "%U: the argument must be a NativeTensorCheck (type or types, handle offset, tuple of "
                     "queries[, image]), not %R", where, given);
        return -1;
    }
    PyObject *queries = PyTuple_GET_ITEM(given, 2);
    Py_ssize_t n = PyTuple_GET_SIZE(queries);
    NativeTest *test = PyMem_Calloc(1, sizeof(NativeTest) + (size_t)n * sizeof(NativeQuery));
    if (test == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    check->native = test;
    test->types = PyTuple_GET_ITEM(given, 0);
    test->n_queries = n;
    test->handle_offset = PyLong_AsSsize_t(PyTuple_GET_ITEM(given, 1));
    if (test->handle_offset == -1 && PyErr_Occurred()) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (fill_query(&test->queries[i], PyTuple_GET_ITEM(queries, i), where) < 0) {
            return -1;
        }
    }
    if (parts == 4 && PyTuple_GET_ITEM(given, 3) != Py_None) {
        check->spec = tf_image_spec(PyTuple_GET_ITEM(given, 3), test->types, test->handle_offset, where);
        return check->spec == NULL ? -1 : 0;
    }
    return 0;
}

/* ---- equal_items: elements of arrays that a C library gives for several values ----------------------------------------- */

struct ItemPairs {
    PyObject *types;            /* borrowed from the check's argument */
    Py_ssize_t handle_offset;
    NativeFunction length, items;
    Py_ssize_t n_values, n_pairs;
    int64_t pairs[][4];         /* value, index, other value, its index */
};

static int
test_equal_items(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    const ItemPairs *test = check->pairs;
    int64_t *items_on_stack[TF_MAX_CAPTURES_ON_STACK], lengths_on_stack[TF_MAX_CAPTURES_ON_STACK];
    int64_t **items = items_on_stack, *lengths = lengths_on_stack;
    void *block = NULL;
    if (test->n_values > TF_MAX_CAPTURES_ON_STACK) {
        block = PyMem_Malloc((size_t)test->n_values * (sizeof(int64_t *) + sizeof(int64_t)));
        if (block == NULL) {
            return 0;
        }
        items = block;
        lengths = (int64_t *)(items + test->n_values);
    }
    bool equal = true;
    for (Py_ssize_t i = 0; i < test->n_values && equal; i++) {
        PyObject *owner = i == 0 ? value : others[i - 1];
        void *handle = (char *)owner + test->handle_offset;
        equal = is_of_types(owner, test->types) && test->length(handle, &lengths[i]) == 0
                && test->items(handle, &items[i]) == 0;
    }
    for (Py_ssize_t i = 0; i < test->n_pairs && equal; i++) {
        const int64_t *pair = test->pairs[i];
        equal = pair[1] < lengths[pair[0]] && pair[3] < lengths[pair[2]]
                && items[pair[0]][pair[1]] == items[pair[2]][pair[3]];
    }
    PyMem_Free(block);
    return equal;
}

/* ---- preparing arguments ----------------------------------------------------------------------------------------------- */

static int
require(bool good, GuardCheck *check, PyObject *where, const char *wanted)
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
    return require(PyType_Check(check->arg), check, where, "a type");
}

static int
prepare_weakref(GuardCheck *check, PyObject *where)
{
    return require(PyWeakref_CheckRefExact(check->arg), check, where, "a weakref.ref");
}

static int
prepare_length(GuardCheck *check, PyObject *where)
{
    check->number = PyLong_CheckExact(check->arg) ? PyLong_AsSsize_t(check->arg) : -1;
    if (check->number < 0) {
        PyErr_Clear();
    }
    return require(check->number >= 0, check, where, "an int >= 0");
}

static int
prepare_tuple(GuardCheck *check, PyObject *where)
{
    return require(PyTuple_Check(check->arg), check, where, "a tuple");
}

static int
prepare_name(GuardCheck *check, PyObject *where)
{
    return require(PyUnicode_Check(check->arg), check, where, "a str");
}

static int
prepare_callable(GuardCheck *check, PyObject *where)
{
    return require(PyCallable_Check(check->arg), check, where, "a callable");
}

static int
prepare_capsule(GuardCheck *check, PyObject *where)
{
    bool pair = PyTuple_Check(check->arg) && PyTuple_GET_SIZE(check->arg) == 2;
    bool good = pair && PyCapsule_IsValid(PyTuple_GET_ITEM(check->arg, 0), "treadle_frame.check")
                && PyLong_Check(PyTuple_GET_ITEM(check->arg, 1));
    if (require(good, check, where, "a pair (capsule named \"treadle_frame.check\", context address as int)") < 0) {
        return -1;
    }
    *(void **)&check->function = PyCapsule_GetPointer(PyTuple_GET_ITEM(check->arg, 0), "treadle_frame.check");
    check->context = PyLong_AsVoidPtr(PyTuple_GET_ITEM(check->arg, 1));
    return check->context == NULL && PyErr_Occurred() ? -1 : 0;
}

/* (value, index, other value, its index) from a tuple of four ints. */
static int
fill_pair(int64_t *pair, PyObject *given, Py_ssize_t n_values, PyObject *where)
{
    bool good = PyTuple_Check(given) && PyTuple_GET_SIZE(given) == 4;
    for (int i = 0; i < 4 && good; i++) {
        PyObject *number = PyTuple_GET_ITEM(given, i);
        pair[i] = PyLong_Check(number) ? PyLong_AsLongLong(number) : -1;
        good = pair[i] >= 0 && (i % 2 == 1 || pair[i] < n_values);
    }
    if (!good) {
        PyErr_Clear();
        PyErr_Format(tf_guard_error, "%U: a pair must be (value, index, other value, its index) with values from 0 to %zd, "
                     "not %R", where, n_values - 1, given);
    }
    return good ? 0 : -1;
}

static int
prepare_equal_items(GuardCheck *check, PyObject *where)
{
    PyObject *spec = PyTuple_Check(check->arg) && PyTuple_GET_SIZE(check->arg) == 2 ? PyTuple_GET_ITEM(check->arg, 0) : NULL;
    bool good = spec != NULL && PyTuple_Check(spec) && PyTuple_GET_SIZE(spec) == 5
                && is_type_or_types(PyTuple_GET_ITEM(spec, 0)) && PyLong_Check(PyTuple_GET_ITEM(spec, 1))
                && PyTuple_Check(PyTuple_GET_ITEM(spec, 4)) && PyTuple_Check(PyTuple_GET_ITEM(check->arg, 1));
    if (require(good, check, where, "a pair (EqualItems, tuple of paths)") < 0) {
        return -1;
    }
    PyObject *pairs = PyTuple_GET_ITEM(spec, 4);
    Py_ssize_t n = PyTuple_GET_SIZE(pairs);
    ItemPairs *test = PyMem_Calloc(1, sizeof(ItemPairs) + (size_t)n * sizeof(test->pairs[0]));
    if (test == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    check->pairs = test;
    test->types = PyTuple_GET_ITEM(spec, 0);
    test->n_values = PyTuple_GET_SIZE(PyTuple_GET_ITEM(check->arg, 1)) + 1;
    test->n_pairs = n;
    test->handle_offset = PyLong_AsSsize_t(PyTuple_GET_ITEM(spec, 1));
    if (test->handle_offset == -1 && PyErr_Occurred()) {
        return -1;
    }
    *(void **)&test->length = address_from(PyTuple_GET_ITEM(spec, 2), where, "the function that gives the length");
    *(void **)&test->items = test->length == NULL ? NULL
                             : address_from(PyTuple_GET_ITEM(spec, 3), where, "the function that gives the items");
    if (test->items == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (fill_pair(test->pairs[i], PyTuple_GET_ITEM(pairs, i), test->n_values, where) < 0) {
            return -1;
        }
    }
    return 0;
}

/* A pair (callable, paths). */
static int
prepare_call_many(GuardCheck *check, PyObject *where)
{
    bool pair = PyTuple_Check(check->arg) && PyTuple_GET_SIZE(check->arg) == 2;
    return require(pair && PyCallable_Check(PyTuple_GET_ITEM(check->arg, 0)), check, where, "a pair (callable, paths)");
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
    {"native_tensor", prepare_native_tensor, test_native_tensor, PATHS_NONE, READS_HANDLE},
    {"same_object", prepare_tuple, test_same_object, PATHS_ARGUMENT, READS_IDENTITY},
    {"distinct_objects", prepare_nothing, test_distinct_objects, PATHS_IN_ARGUMENT, READS_IDENTITY},
    {"call_many", prepare_call_many, test_call_many, PATHS_IN_SECOND},
    {"equal_items", prepare_equal_items, test_equal_items, PATHS_IN_SECOND},
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
    free_native_test(check->native);
    check->native = NULL;
    PyMem_Free(check->spec);
    check->spec = NULL;
    PyMem_Free(check->pairs);
    check->pairs = NULL;
    PyMem_Free(check->type_facts);
    check->type_facts = NULL;
}

size_t
tf_check_size(const GuardCheck *check)
{
    size_t size = (size_t)check->n_others * sizeof(GuardNode *);
    if (check->native != NULL) {
        size += sizeof(NativeTest);
        for (Py_ssize_t i = 0; i < check->native->n_queries; i++) {
            size += sizeof(NativeQuery) + 3 * sizeof(int64_t) * ((size_t)check->native->queries[i].n_expected + 1);
        }
    }
    if (check->pairs != NULL) {
        size += sizeof(ItemPairs) + (size_t)check->pairs->n_pairs * sizeof(check->pairs->pairs[0]);
    }
    return size;
}
