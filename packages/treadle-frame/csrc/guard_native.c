/* Checks that ask a C library about a value, through functions whose addresses the argument gives: `native_tensor` and `equal_items`.
 *
 * The handle that such a function takes is a word of the Python object. This file knows no header of the library.
 */
#include "treadle_frame.h"

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

bool
tf_is_of_types(PyObject *value, PyObject *types)
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

int
tf_test_native_tensor(const GuardCheck *check, PyObject *value, PyObject *const *others)
{
    const NativeTest *test = check->native;
    if (!tf_is_of_types(value, test->types)) {
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

int
tf_prepare_native_tensor(GuardCheck *check, PyObject *where)
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

int
tf_test_equal_items(const GuardCheck *check, PyObject *value, PyObject *const *others)
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
        equal = tf_is_of_types(owner, test->types) && test->length(handle, &lengths[i]) == 0
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

int
tf_prepare_equal_items(GuardCheck *check, PyObject *where)
{
    PyObject *spec = PyTuple_Check(check->arg) && PyTuple_GET_SIZE(check->arg) == 2 ? PyTuple_GET_ITEM(check->arg, 0) : NULL;
    bool good = spec != NULL && PyTuple_Check(spec) && PyTuple_GET_SIZE(spec) == 5
                && is_type_or_types(PyTuple_GET_ITEM(spec, 0)) && PyLong_Check(PyTuple_GET_ITEM(spec, 1))
                && PyTuple_Check(PyTuple_GET_ITEM(spec, 4)) && PyTuple_Check(PyTuple_GET_ITEM(check->arg, 1));
    if (tf_check_require(good, check, where, "a pair (EqualItems, tuple of paths)") < 0) {
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

/* ---- what both own ----------------------------------------------------------------------------------------------------- */

void
tf_native_free(GuardCheck *check)
{
    free_native_test(check->native);
    check->native = NULL;
    PyMem_Free(check->spec);
    check->spec = NULL;
    PyMem_Free(check->pairs);
    check->pairs = NULL;
}

size_t
tf_native_size(const GuardCheck *check)
{
    size_t size = 0;
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
