/* The cache of entries in a code object's extra slot.
 *
 * A cache holds its entries as a tuple that is replaced as a whole, so whoever loops over one holds a tuple that stays
 * valid whatever guards do meanwhile (add, remove, reset). The cache is freed with its code object; nothing may keep a
 * CodeCache pointer over a call that can run Python code.
 */
#include "treadle_frame.h"

static Py_ssize_t extra_index = -1;
static CodeCache *all_caches = NULL;
unsigned long long tf_work_done = 0;

static void
free_cache(void *extra)
{
    CodeCache *cache = extra;
    if (cache == NULL) {
        return;
    }
    if (cache->previous != NULL) {
        cache->previous->next = cache->next;
    }
    else {
        all_caches = cache->next;
    }
    if (cache->next != NULL) {
        cache->next->previous = cache->previous;
    }
    PyObject *entries = cache->entries;
    PyMem_Free(cache);
    Py_XDECREF(entries);
}

int
tf_cache_init(void)
{
    if (extra_index >= 0) {
        return 0;
    }
    extra_index = tf_request_code_extra_index(free_cache);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_RuntimeError, "treadle_frame: CPython has no free code extra index left");
    }
    return extra_index < 0 ? -1 : 0;
}

CodeCache *
tf_cache_of(PyCodeObject *code)
{
    void *extra = NULL;
    if (tf_code_get_extra(code, extra_index, &extra) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return extra;
}

CodeCache *
tf_cache_create(PyCodeObject *code)
{
    CodeCache *cache = tf_cache_of(code);
    if (cache != NULL) {
        return cache;
    }
    cache = PyMem_Calloc(1, sizeof(CodeCache));
    PyObject *entries = PyTuple_New(0);
    if (cache == NULL || entries == NULL || tf_code_set_extra(code, extra_index, cache) < 0) {
        PyMem_Free(cache);
        Py_XDECREF(entries);
        return PyErr_Occurred() ? NULL : (CodeCache *)PyErr_NoMemory();
    }
    cache->code = code;
    cache->entries = entries;
    cache->next = all_caches;
    if (all_caches != NULL) {
        all_caches->previous = cache;
    }
    all_caches = cache;
    return cache;
}

/* The entries with `moved` in front: new tuple, or NULL with an error. `moved` may or may not be among them. */
static PyObject *
entries_with_first(PyObject *entries, PyObject *moved)
{
    Py_ssize_t n = PyTuple_GET_SIZE(entries), kept = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        kept += PyTuple_GET_ITEM(entries, i) != moved;
    }
    Py_INCREF(entries);         /* an allocation may collect garbage, and that may reset the cache */
    PyObject *result = PyTuple_New(kept + 1);
    if (result == NULL) {
        Py_DECREF(entries);
        return NULL;
    }
    PyTuple_SET_ITEM(result, 0, Py_NewRef(moved));
    for (Py_ssize_t i = 0, at = 1; i < n; i++) {
        if (PyTuple_GET_ITEM(entries, i) != moved) {
            PyTuple_SET_ITEM(result, at++, Py_NewRef(PyTuple_GET_ITEM(entries, i)));
        }
    }
    Py_DECREF(entries);
    return result;
}

/* ---- looking up ---------------------------------------------------------------------------------------------------- */

int
tf_entry_holds(Entry *entry, GuardView *view)
{
    view->bound = entry->bound;
    return tf_program_holds(entry->guard, view);
}

/* Where all entries run the original code, a guard decides only whether the handler is asked about another kind of call. After so many
 * hits the entries are looked at once in so many calls. */
enum { HITS_BEFORE_REST = 64, CALLS_OF_REST = 15 };

static void
rest_if_all_run_original(CodeCache *cache, const Entry *hit)
{
    if (!hit->runs_original || hit->hits < HITS_BEFORE_REST) {
        return;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(cache->entries); i++) {
        if (!((Entry *)PyTuple_GET_ITEM(cache->entries, i))->runs_original) {
            return;
        }
    }
    cache->resting = CALLS_OF_REST;
}

bool
tf_cache_rests(CodeCache *cache)
{
    if (cache->resting == 0) {
        return false;
    }
    cache->resting--;
    return true;
}

int
tf_cache_find(PyCodeObject *code, GuardView *view, Entry **found)
{
    *found = NULL;
    CodeCache *cache = tf_cache_of(code);
    if (cache == NULL || PyTuple_GET_SIZE(cache->entries) == 0) {
        return 0;
    }
    PyObject *entries = Py_NewRef(cache->entries);
    ThreadHook *thread = tf_thread();
    PyObject *paused = thread == NULL ? NULL : tf_thread_pause(thread);
    int holds = 0;
    Py_ssize_t i = 0;
    for (; i < PyTuple_GET_SIZE(entries); i++) {
        holds = tf_entry_holds((Entry *)PyTuple_GET_ITEM(entries, i), view);
        if (holds != 0) {
            break;
        }
    }
    if (thread != NULL && tf_thread_unpause(thread, paused) < 0) {
        holds = -1;
    }
    if (holds == 1) {
        Entry *entry = (Entry *)Py_NewRef(PyTuple_GET_ITEM(entries, i));
        entry->hits++;
        *found = entry;
        cache = tf_cache_of(code);
        if (cache != NULL) {
            rest_if_all_run_original(cache, entry);
        }
        if (i > 0 && cache != NULL && cache->entries == entries) {
            PyObject *reordered = entries_with_first(entries, (PyObject *)entry);
            if (reordered == NULL) {
                PyErr_Clear();
            }
            else {
                Py_SETREF(cache->entries, reordered);
            }
        }
    }
    Py_DECREF(entries);
    return holds;
}

/* ---- adding and removing ------------------------------------------------------------------------------------------- */

/* NULL when `replacement` can run in the place of `code`, else what differs (new reference), or NULL with an error. */
static PyObject *
why_not_replace(PyCodeObject *code, PyCodeObject *replacement)
{
    const struct {
        const char *name;
        int original, given;
    } counts[] = {
        {"co_argcount", code->co_argcount, replacement->co_argcount},
        {"co_posonlyargcount", code->co_posonlyargcount, replacement->co_posonlyargcount},
        {"co_kwonlyargcount", code->co_kwonlyargcount, replacement->co_kwonlyargcount},
        {"flag CO_VARARGS", (code->co_flags & CO_VARARGS) != 0, (replacement->co_flags & CO_VARARGS) != 0},
        {"flag CO_VARKEYWORDS", (code->co_flags & CO_VARKEYWORDS) != 0, (replacement->co_flags & CO_VARKEYWORDS) != 0},
    };
    if (!tf_is_plain_function_code(code)) {
        return PyUnicode_FromFormat("%R is no plain function (generators, coroutines, class and module bodies are never "
                                    "replaced)", code->co_name);
    }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (counts[i].original != counts[i].given) {
            return PyUnicode_FromFormat("%s is %d, must be %d as in %R", counts[i].name, counts[i].given,
                                        counts[i].original, code->co_name);
        }
    }
    for (int i = 0; i < tf_n_arguments(code); i++) {
        PyObject *original = PyTuple_GET_ITEM(code->co_localsplusnames, i);
        PyObject *given = PyTuple_GET_ITEM(replacement->co_localsplusnames, i);
        if (PyUnicode_Compare(original, given) != 0) {
            return PyUnicode_FromFormat("argument %d is named %R, must be %R", i, given, original);
        }
    }
    PyObject *original = PyCode_GetFreevars(code), *given = PyCode_GetFreevars(replacement), *why = NULL;
    int same = original == NULL || given == NULL ? -1 : PyObject_RichCompareBool(original, given, Py_EQ);
    if (same == 0) {
        why = PyUnicode_FromFormat("co_freevars is %R, must be %R", given, original);
    }
    Py_XDECREF(original);
    Py_XDECREF(given);
    return why;
}

int
tf_cache_accepts(PyCodeObject *code, Entry *entry)
{
    PyObject *why = why_not_replace(code, entry->code);
    if (why != NULL) {
        PyErr_Format(tf_layout_error, "entry: replacement code %R does not fit: %U", entry->code->co_name, why);
        Py_DECREF(why);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* An entry whose replacement is the code that it is cached on would keep that code alive, and the code the entry: run a copy. */
static int
avoid_own_code(PyCodeObject *code, Entry *entry)
{
    if (entry->code != code) {
        return 0;
    }
    entry->runs_original = entry->fast_path_callable == NULL;
    PyObject *copy = PyObject_CallMethod((PyObject *)code, "replace", NULL);
    if (copy == NULL) {
        return -1;
    }
    Py_SETREF(entry->code, (PyCodeObject *)copy);
    return 0;
}

int
tf_cache_add(PyCodeObject *code, Entry *entry)
{
    bool good = tf_cache_accepts(code, entry) == 0 && avoid_own_code(code, entry) == 0;
    CodeCache *cache = good ? tf_cache_create(code) : NULL;
    PyObject *entries = cache == NULL ? NULL : entries_with_first(cache->entries, (PyObject *)entry);
    if (entries == NULL) {
        return -1;
    }
    cache->resting = 0;
    Py_SETREF(cache->entries, entries);
    return 0;
}

int
tf_cache_set_skip(PyCodeObject *code, bool skip)
{
    CodeCache *cache = skip ? tf_cache_create(code) : tf_cache_of(code);
    if (cache != NULL) {
        cache->skip = skip;
        cache->skip_below = false;
    }
    return cache == NULL && skip ? -1 : 0;
}

int
tf_cache_set_skip_below(PyCodeObject *code)
{
    if (tf_cache_set_skip(code, true) < 0) {
        return -1;
    }
    tf_cache_of(code)->skip_below = true;
    return 0;
}

/* Forgets all entries of a cache. May free the cache itself (an entry may hold the last reference to its code). */
static int
cache_clear(CodeCache *cache)
{
    PyObject *empty = PyTuple_New(0);
    if (empty == NULL) {
        return -1;
    }
    cache->skip = cache->skip_below = false;
    cache->stale_entries = cache->resting = 0;
    Py_SETREF(cache->entries, empty);
    return 0;
}

/* ---- module functions ------------------------------------------------------------------------------------------------ */

/* The code object that a person means: a code object, or a function or method that has one. Borrowed. */
static PyCodeObject *
code_argument(PyObject *given)
{
    if (PyMethod_Check(given)) {
        given = PyMethod_GET_FUNCTION(given);
    }
    if (PyFunction_Check(given)) {
        given = PyFunction_GET_CODE(given);
    }
    if (!PyCode_Check(given)) {
        PyErr_Format(PyExc_TypeError, "code: a code object or a Python function is needed, not %R", given);
        return NULL;
    }
    return (PyCodeObject *)given;
}

static PyObject *
module_entries(PyObject *module, PyObject *given)
{
    PyCodeObject *code = code_argument(given);
    if (code == NULL) {
        return NULL;
    }
    CodeCache *cache = tf_cache_of(code);
    return cache == NULL ? PyTuple_New(0) : Py_NewRef(cache->entries);
}

static PyObject *
module_add_entry(PyObject *module, PyObject *args)
{
    PyObject *given;
    Entry *entry;
    if (!PyArg_ParseTuple(args, "OO!:add_entry", &given, &Entry_Type, &entry)) {
        return NULL;
    }
    PyCodeObject *code = code_argument(given);
    if (code == NULL || tf_cache_add(code, entry) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
module_remove_entry(PyObject *module, PyObject *args)
{
    PyObject *given, *entry;
    if (!PyArg_ParseTuple(args, "OO!:remove_entry", &given, &Entry_Type, &entry)) {
        return NULL;
    }
    PyCodeObject *code = code_argument(given);
    if (code == NULL) {
        return NULL;
    }
    CodeCache *cache = tf_cache_of(code);
    PyObject *with_first = cache == NULL ? PyTuple_New(0) : entries_with_first(cache->entries, entry);
    if (with_first == NULL) {
        return NULL;
    }
    bool present = cache != NULL && PyTuple_GET_SIZE(with_first) == PyTuple_GET_SIZE(cache->entries);
    PyObject *rest = present ? PyTuple_GetSlice(with_first, 1, PyTuple_GET_SIZE(with_first)) : NULL;
    Py_DECREF(with_first);
    if (present && rest == NULL) {
        return NULL;
    }
    if (present) {
        cache->resting = 0;
        Py_SETREF(cache->entries, rest);
        tf_dispatchers_forget(entry);   /* which the caller holds */
    }
    return PyBool_FromLong(present);
}

static PyObject *
module_reset(PyObject *module, PyObject *args)
{
    PyObject *given = Py_None;
    if (!PyArg_ParseTuple(args, "|O:reset", &given)) {
        return NULL;
    }
    if (given != Py_None) {
        PyCodeObject *code = code_argument(given);
        CodeCache *cache = code == NULL ? NULL : tf_cache_of(code);
        if (code == NULL || (cache != NULL && cache_clear(cache) < 0)) {
            return NULL;
        }
        Py_RETURN_NONE;
    }
    /* Dropping entries runs destructors, and those may free caches: take the codes first. A code whose reference count
     * is zero is just being freed with its cache and cannot be held. */
    PyObject *codes = PyList_New(0);
    for (CodeCache *cache = all_caches; codes != NULL && cache != NULL; cache = cache->next) {
        if (Py_REFCNT(cache->code) > 0 && PyList_Append(codes, (PyObject *)cache->code) < 0) {
            Py_CLEAR(codes);
        }
    }
    for (Py_ssize_t i = 0; codes != NULL && i < PyList_GET_SIZE(codes); i++) {
        CodeCache *cache = tf_cache_of((PyCodeObject *)PyList_GET_ITEM(codes, i));
        if (cache != NULL && cache_clear(cache) < 0) {
            Py_CLEAR(codes);
        }
    }
    if (codes == NULL) {
        return NULL;
    }
    Py_DECREF(codes);
    Py_RETURN_NONE;
}

static PyObject *
set_skip(PyObject *given, bool skip)
{
    PyCodeObject *code = code_argument(given);
    if (code == NULL || tf_cache_set_skip(code, skip) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
module_skip(PyObject *module, PyObject *given)
{
    return set_skip(given, true);
}

static PyObject *
module_unskip(PyObject *module, PyObject *given)
{
    return set_skip(given, false);
}

static PyObject *
module_is_skipped(PyObject *module, PyObject *given)
{
    PyCodeObject *code = code_argument(given);
    if (code == NULL) {
        return NULL;
    }
    CodeCache *cache = tf_cache_of(code);
    return PyBool_FromLong(cache != NULL && cache->skip);
}

PyMethodDef tf_cache_methods[] = {
    {"entries", module_entries, METH_O, "entries(code) -> tuple[Entry, ...]\n\nIn the order in which they are tried."},
    {"add_entry", module_add_entry, METH_VARARGS,
     "add_entry(code, entry)\n\nPuts the entry in front. LayoutError (a ValueError) names what differs in its layout."},
    {"remove_entry", module_remove_entry, METH_VARARGS, "remove_entry(code, entry) -> bool\n\nFalse: it was not there."},
    {"reset", module_reset, METH_VARARGS, "reset(code=None)\n\nForgets the entries and the skip mark of one code or of all."},
    {"skip", module_skip, METH_O, "skip(code)\n\nFrames of this code are run as they are from now on."},
    {"unskip", module_unskip, METH_O, "unskip(code)"},
    {"is_skipped", module_is_skipped, METH_O, "is_skipped(code) -> bool"},
    {NULL, NULL, 0, NULL},
};
