/* dispatcher(fn, handler): the frameless path.
 *
 *     d(*args, **kwargs)
 *       |- binds the arguments to fn's argument slots, in C
 *       |- an entry of fn.__code__ holds, and it has a fast path --> callable(selected slots), hook off, no frame at all
 *       |- an entry of fn.__code__ holds --------------------> its replacement code as a function, handler set
 *       `- else, or the arguments do not fit ----------------> fn(*args, **kwargs), handler set
 *
 * Arguments that do not fit are left to fn itself, whose TypeError is then CPython's own.
 */
#include "treadle_frame.h"

#define SLOTS_ON_STACK 24

typedef struct {
    PyObject *entry, *function; /* owned */
} MadeFunction;

typedef struct Dispatcher {
    PyObject_HEAD
    struct Dispatcher *previous, *next; /* all dispatchers, for tf_dispatchers_forget() */
    PyObject *callable;         /* owned: what was given, a function or a bound method */
    PyObject *function;         /* owned: the Python function in it */
    PyObject *bound_self;       /* owned, NULL for a function */
    PyObject *handler;          /* owned */
    PyObject *followed;         /* owned, or NULL: the function that `function` is a copy of */
    PyObject *refresh;          /* owned, or NULL: called when the code or the defaults of `followed` are others than those seen */
    PyObject *seen[3];          /* owned, or NULL: the code and the defaults of `followed` that `function` has */
    vectorcallfunc vectorcall;
    PyObject *dict, *weakrefs;
    MadeFunction *made;         /* owned: replacement codes of entries that were hit, as functions */
    Py_ssize_t n_made;
} Dispatcher;

static Dispatcher *all_dispatchers;

static void
link_dispatcher(Dispatcher *self)
{
    self->next = all_dispatchers;
    if (all_dispatchers != NULL) {
        all_dispatchers->previous = self;
    }
    all_dispatchers = self;
}

static void
unlink_dispatcher(Dispatcher *self)
{
    if (self->previous == NULL && all_dispatchers != self) {
        return;                 /* never linked */
    }
    *(self->previous == NULL ? &all_dispatchers : &self->previous->next) = self->next;
    if (self->next != NULL) {
        self->next->previous = self->previous;
    }
    self->previous = self->next = NULL;
}

/* The functions made for an entry that is removed go at once: their constants hold its graph. */
void
tf_dispatchers_forget(PyObject *entry)
{
    PyObject *gone = PyList_New(0);     /* what goes may run Python code: last */
    for (Dispatcher *self = all_dispatchers; self != NULL && gone != NULL; self = self->next) {
        for (Py_ssize_t i = self->n_made - 1; i >= 0; i--) {
            if (self->made[i].entry == entry && PyList_Append(gone, self->made[i].function) == 0) {
                Py_DECREF(self->made[i].function);
                Py_DECREF(self->made[i].entry);     /* the caller has another reference */
                self->made[i] = self->made[--self->n_made];
            }
        }
    }
    Py_XDECREF(gone);
    PyErr_Clear();
}

/* ---- running with the handler set -------------------------------------------------------------------------------------- */

typedef struct {
    ThreadHook *thread;         /* NULL: nothing to undo */
    PyObject *previous;         /* owned */
} HandlerScope;

/* A thread that runs cached entries only keeps doing so. Where another evaluator is in the way, the code runs without the
 * hook and a warning says so. */
static int
enter_handler(Dispatcher *self, HandlerScope *scope)
{
    *scope = (HandlerScope){NULL, NULL};
    ThreadHook *thread = tf_thread_create();
    if (thread == NULL) {
        return -1;
    }
    if (thread->state == self->handler || thread->state == tf_run_cached) {
        return 0;
    }
    PyObject *previous = Py_XNewRef(thread->state);
    if (tf_thread_set(thread, Py_NewRef(self->handler)) == 0) {
        *scope = (HandlerScope){thread, previous};
        return 0;
    }
    Py_XDECREF(previous);
    if (!PyErr_ExceptionMatches(tf_evaluator_error)) {
        return -1;
    }
    PyErr_Clear();
    return PyErr_WarnEx(tf_evaluator_warning, "another frame evaluator (PEP 523) is active, so this call runs without the "
                                              "hook of treadle_frame", 1);
}

/* Passes `result` and the exception on. */
static PyObject *
leave_handler(HandlerScope *scope, PyObject *result)
{
    if (scope->thread != NULL && tf_thread_unpause(scope->thread, scope->previous) < 0) {
        Py_CLEAR(result);
    }
    return result;
}

static PyObject *
call_original(Dispatcher *self, PyObject *const *args, size_t nargsf, PyObject *keyword_names)
{
    HandlerScope scope;
    tf_counters.dispatcher_misses++;
    if (enter_handler(self, &scope) < 0) {
        return NULL;
    }
    return leave_handler(&scope, PyObject_Vectorcall(self->callable, args, nargsf, keyword_names));
}

/* ---- running an entry --------------------------------------------------------------------------------------------------- */

static void
free_made(MadeFunction *made, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_DECREF(made[i].entry);
        Py_DECREF(made[i].function);
    }
    PyMem_Free(made);
}

static bool
is_current(PyObject *entries, PyObject *entry)
{
    for (Py_ssize_t i = 0; entries != NULL && i < PyTuple_GET_SIZE(entries); i++) {
        if (PyTuple_GET_ITEM(entries, i) == entry) {
            return true;
        }
    }
    return false;
}

/* The function for an entry (new reference), made at its first hit. Functions of entries that are gone go as well. */
static PyObject *
function_of_entry(Dispatcher *self, PyCodeObject *code, Entry *entry)
{
    for (Py_ssize_t i = 0; i < self->n_made; i++) {
        if (self->made[i].entry == (PyObject *)entry) {
            return Py_NewRef(self->made[i].function);
        }
    }
    PyObject *function = tf_function_like(self->function, entry->code);
    MadeFunction *made = function == NULL ? NULL : PyMem_Calloc((size_t)self->n_made + 1, sizeof(MadeFunction));
    if (made == NULL) {
        Py_XDECREF(function);
        return function == NULL ? NULL : PyErr_NoMemory();
    }
    CodeCache *cache = tf_cache_of(code);
    Py_ssize_t kept = 0;
    made[kept++] = (MadeFunction){Py_NewRef((PyObject *)entry), Py_NewRef(function)};
    for (Py_ssize_t i = 0; i < self->n_made; i++) {
        if (is_current(cache == NULL ? NULL : cache->entries, self->made[i].entry)) {
            made[kept++] = (MadeFunction){Py_NewRef(self->made[i].entry), Py_NewRef(self->made[i].function)};
        }
    }
    MadeFunction *old = self->made;
    Py_ssize_t n_old = self->n_made;
    self->made = made;
    self->n_made = kept;
    free_made(old, n_old);
    return function;
}

static PyObject *
first_item(PyObject *result)
{
    PyObject *item;
    if (PyTuple_CheckExact(result) && PyTuple_GET_SIZE(result) > 0) {
        item = Py_NewRef(PyTuple_GET_ITEM(result, 0));
    }
    else {
        item = PySequence_GetItem(result, 0);
    }
    Py_DECREF(result);
    return item;
}

/* Calls with the hook off: what a fast-path entry calls is compiled already. */
static PyObject *
call_fast_path(Entry *entry, PyObject **values)
{
    ThreadHook *thread = tf_thread();
    bool pause = thread != NULL && thread->state != NULL;
    PyObject *paused = pause ? tf_thread_pause(thread) : NULL;
    PyObject *result = PyObject_Vectorcall(entry->fast_path_callable, values,
                                           (size_t)entry->n_fast_path | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    if (pause && tf_thread_unpause(thread, paused) < 0) {
        Py_CLEAR(result);
    }
    return result != NULL && entry->fast_path_unpack ? first_item(result) : result;
}

/* 1 and *result (NULL: an exception is set), or 0 when the values are not there and the code must run. */
static int
run_fast_path(Entry *entry, PyObject *const *slots, PyObject **result)
{
    PyObject *on_stack[SLOTS_ON_STACK + 1];
    PyObject **values = on_stack;
    if (entry->n_fast_path > SLOTS_ON_STACK) {
        values = PyMem_Malloc(sizeof(PyObject *) * (size_t)(entry->n_fast_path + 1));
        if (values == NULL) {
            *result = PyErr_NoMemory();
            return 1;
        }
    }
    int there = tf_entry_fast_path_values(entry, slots, values + 1);
    if (there) {
        *result = call_fast_path(entry, values + 1);
    }
    if (values != on_stack) {
        PyMem_Free(values);
    }
    return there;
}

/* Whether the entry's code runs because of the exception in flight: an Exception to which the entry's question, `may_retry(error)`, says so.
   An exception that the question raises itself takes the place of that one. */
static bool
may_retry(Entry *entry)
{
    if (entry->fast_path_may_retry == NULL || !PyErr_ExceptionMatches(PyExc_Exception)) {
        return false;
    }
    TfException taken = tf_exception_take_whole();
    PyObject *answer = PyObject_CallOneArg(entry->fast_path_may_retry, taken.value);
    int truth = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (truth < 0) {
        tf_exception_drop(taken);
        return false;
    }
    tf_exception_put_back(taken);
    return truth == 1;
}

static PyObject *
run_entry(Dispatcher *self, PyCodeObject *code, Entry *entry, PyObject *const *slots)
{
    tf_counters.dispatcher_hits++;
    tf_work_done += !entry->runs_original;
    PyObject *result = NULL;
    if (entry->fast_path_callable != NULL && run_fast_path(entry, slots, &result)) {
        if (result != NULL || !may_retry(entry)) {
            return result;
        }
        PyErr_Clear(); /* the code knows what to do about it */
    }
    HandlerScope scope;
    PyObject *function = function_of_entry(self, code, entry);
    if (function == NULL || enter_handler(self, &scope) < 0) {
        Py_XDECREF(function);
        return NULL;
    }
    result = leave_handler(&scope, tf_call_with_slots(function, code, slots));
    Py_DECREF(function);
    return result;
}

/* ---- the call ------------------------------------------------------------------------------------------------------------ */

/* Binds and looks up: 1 and the slots and entry (owned) filled in, 0 for the slow way, -1 with an exception set. */
static int
find_entry(Dispatcher *self, PyCodeObject *code, const GivenArguments *given, PyObject **slots, Entry **entry)
{
    int found = tf_bind_arguments((PyFunctionObject *)self->function, self->bound_self, code, given, slots);
    if (found == 1) {
        PyFunctionObject *function = (PyFunctionObject *)self->function;
        GuardView view = {
            .slots = slots,
            .globals = function->func_globals,
            .builtins = function->func_builtins,
            .closure = function->func_closure,
        };
        found = tf_cache_find(code, &view, entry);
    }
    return found;
}

/* A call in a rest. Behind a call that found nothing to compile, and nothing compiled, the hook stays off. */
static PyObject *
call_resting(Dispatcher *self, CodeCache *cache, PyObject *const *args, size_t nargsf, PyObject *keyword_names)
{
    ThreadHook *thread = tf_thread();
    if (!cache->idle || (thread != NULL && thread->state != NULL)) {
        return call_original(self, args, nargsf, keyword_names);    /* the evaluator counts the rest down */
    }
    (void)tf_cache_rests(cache);
    tf_counters.dispatcher_misses++;
    return PyObject_Vectorcall(self->callable, args, nargsf, keyword_names);
}

static PyObject *
dispatch(Dispatcher *self, PyCodeObject *code, PyObject *const *args, size_t nargsf, PyObject *keyword_names)
{
    CodeCache *cache = tf_cache_of(code);
    if (cache == NULL || PyTuple_GET_SIZE(cache->entries) == 0) {
        return call_original(self, args, nargsf, keyword_names);
    }
    if (cache->resting > 0) {
        return call_resting(self, cache, args, nargsf, keyword_names);
    }
    int n_slots = tf_n_arguments(code);
    PyObject *on_stack[SLOTS_ON_STACK];
    PyObject **slots = n_slots <= SLOTS_ON_STACK ? on_stack : PyMem_Malloc((size_t)n_slots * sizeof(PyObject *));
    if (slots == NULL) {
        return PyErr_NoMemory();
    }
    for (int i = 0; i < n_slots; i++) {
        slots[i] = NULL;
    }
    GivenArguments given = {args, PyVectorcall_NARGS(nargsf), keyword_names};
    Entry *entry = NULL;
    PyObject *result = NULL;
    int found = find_entry(self, code, &given, slots, &entry);
    if (found == 1) {
        unsigned long long before = tf_work_done;
        result = run_entry(self, code, entry, slots);
        Py_DECREF(entry);
        cache = tf_cache_of(code);
        if (cache != NULL) {
            cache->idle = tf_work_done == before;
        }
    }
    for (int i = 0; i < n_slots; i++) {
        Py_XDECREF(slots[i]);
    }
    if (slots != on_stack) {
        PyMem_Free(slots);
    }
    return found == 0 ? call_original(self, args, nargsf, keyword_names) : result;
}

/* ---- following another function -------------------------------------------------------------------------------------------- */

static void
see_followed(Dispatcher *self)
{
    PyFunctionObject *followed = (PyFunctionObject *)self->followed;
    Py_XSETREF(self->seen[0], Py_NewRef(followed->func_code));
    Py_XSETREF(self->seen[1], Py_XNewRef(followed->func_defaults));
    Py_XSETREF(self->seen[2], Py_XNewRef(followed->func_kwdefaults));
}

/* Brings `function` up to date with the function that it is a copy of: 0, or -1 with an exception set. */
static int
follow(Dispatcher *self)
{
    PyFunctionObject *followed = (PyFunctionObject *)self->followed;
    if (followed == NULL
        || (followed->func_code == self->seen[0] && followed->func_defaults == self->seen[1]
            && followed->func_kwdefaults == self->seen[2])) {
        return 0;
    }
    see_followed(self);
    PyObject *result = PyObject_CallNoArgs(self->refresh);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static PyObject *
dispatcher_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *keyword_names)
{
    Dispatcher *self = (Dispatcher *)callable;
    if (Py_EnterRecursiveCall(" in a treadle_frame.dispatcher")) {
        return NULL;
    }
    Py_INCREF(self);
    PyObject *result = NULL;
    if (follow(self) == 0) {
        PyObject *code = Py_NewRef(PyFunction_GET_CODE(self->function));
        result = tf_leaves_to_other_evaluator(self->handler)
                     ? PyObject_Vectorcall(self->callable, args, nargsf, keyword_names)
                     : dispatch(self, (PyCodeObject *)code, args, nargsf, keyword_names);
        Py_DECREF(code);
    }
    Py_DECREF(self);
    Py_LeaveRecursiveCall();
    return result;
}

/* ---- the type -------------------------------------------------------------------------------------------------------------- */

static int
look_like(PyObject *self, PyObject *fn)
{
    PyObject *functools = PyImport_ImportModule("functools");
    PyObject *result = functools == NULL ? NULL : PyObject_CallMethod(functools, "update_wrapper", "OO", self, fn);
    Py_XDECREF(functools);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static PyObject *
dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"fn", "handler", "followed", "refresh", NULL};
    PyObject *fn, *handler, *followed = NULL, *refresh = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O!O:dispatcher", keywords, &fn, &handler, &PyFunction_Type, &followed,
                                     &refresh)) {
        return NULL;
    }
    if ((followed == NULL) != (refresh == NULL) || (refresh != NULL && !PyCallable_Check(refresh))) {
        PyErr_SetString(PyExc_TypeError, "refresh: must be a callable, given together with followed");
        return NULL;
    }
    PyObject *function = PyMethod_Check(fn) ? PyMethod_GET_FUNCTION(fn) : fn;
    if (!PyFunction_Check(function)) {
        PyErr_Format(PyExc_TypeError, "fn: must be a Python function or a bound method of one, not %R", fn);
        return NULL;
    }
    if (handler != tf_run_cached && !PyCallable_Check(handler)) {
        PyErr_Format(PyExc_TypeError, "handler: must be RUN_CACHED or a callable, not %R", handler);
        return NULL;
    }
    Dispatcher *self = (Dispatcher *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->callable = Py_NewRef(fn);
    self->function = Py_NewRef(function);
    self->bound_self = PyMethod_Check(fn) ? Py_NewRef(PyMethod_GET_SELF(fn)) : NULL;
    self->handler = Py_NewRef(handler);
    self->followed = Py_XNewRef(followed);
    self->refresh = Py_XNewRef(refresh);
    if (followed != NULL) {
        see_followed(self);
    }
    self->vectorcall = dispatcher_vectorcall;
    link_dispatcher(self);
    if (look_like((PyObject *)self, fn) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int
dispatcher_traverse(PyObject *object, visitproc visit, void *arg)
{
    Dispatcher *self = (Dispatcher *)object;
    Py_VISIT(self->callable);
    Py_VISIT(self->function);
    Py_VISIT(self->bound_self);
    Py_VISIT(self->handler);
    Py_VISIT(self->followed);
    Py_VISIT(self->refresh);
    for (int i = 0; i < 3; i++) {
        Py_VISIT(self->seen[i]);
    }
    Py_VISIT(self->dict);
    for (Py_ssize_t i = 0; i < self->n_made; i++) {
        Py_VISIT(self->made[i].entry);
        Py_VISIT(self->made[i].function);
    }
    return 0;
}

/* What a call needs stays, so that a dispatcher called by somebody's finalizer still works; `dict` breaks cycles. */
static int
dispatcher_clear(PyObject *object)
{
    Dispatcher *self = (Dispatcher *)object;
    MadeFunction *made = self->made;
    Py_ssize_t n = self->n_made;
    self->made = NULL;
    self->n_made = 0;
    free_made(made, n);
    Py_CLEAR(self->dict);
    return 0;
}

static void
dispatcher_dealloc(PyObject *object)
{
    Dispatcher *self = (Dispatcher *)object;
    PyObject_GC_UnTrack(object);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(object);
    }
    unlink_dispatcher(self);
    dispatcher_clear(object);
    Py_XDECREF(self->callable);
    Py_XDECREF(self->function);
    Py_XDECREF(self->bound_self);
    Py_XDECREF(self->handler);
    Py_XDECREF(self->followed);
    Py_XDECREF(self->refresh);
    for (int i = 0; i < 3; i++) {
        Py_XDECREF(self->seen[i]);
    }
    Py_TYPE(object)->tp_free(object);
}

/* A dispatcher of a function binds like the function; one of a bound method is bound already. */
static PyObject *
dispatcher_get(PyObject *object, PyObject *instance, PyObject *owner)
{
    bool bind_now = instance != NULL && instance != Py_None && ((Dispatcher *)object)->bound_self == NULL;
    return bind_now ? PyMethod_New(object, instance) : Py_NewRef(object);
}

static PyObject *
dispatcher_repr(PyObject *object)
{
    return PyUnicode_FromFormat("<treadle_frame.dispatcher of %R>", ((Dispatcher *)object)->callable);
}

static PyObject *
dispatcher_reduce(PyObject *object, PyObject *ignored)
{
    PyErr_Format(PyExc_TypeError, "cannot pickle %R: pickle the function it wraps (__wrapped__)", object);
    return NULL;
}

/* Functions are copied by reference, so is this. A bound one is refused: which object should the copy be bound to? */
static PyObject *
dispatcher_copy(PyObject *object, PyObject *ignored)
{
    return ((Dispatcher *)object)->bound_self == NULL ? Py_NewRef(object) : dispatcher_reduce(object, NULL);
}

static PyMethodDef dispatcher_methods[] = {
    {"__reduce__", dispatcher_reduce, METH_NOARGS, NULL},
    {"__reduce_ex__", dispatcher_reduce, METH_O, NULL},
    {"__copy__", dispatcher_copy, METH_NOARGS, NULL},
    {"__deepcopy__", dispatcher_copy, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef dispatcher_members[] = {
    {"handler", T_OBJECT, offsetof(Dispatcher, handler), READONLY, "The handler that calls run under."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef dispatcher_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject Dispatcher_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "treadle_frame.dispatcher",
    .tp_basicsize = sizeof(Dispatcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "dispatcher(fn, handler, followed=None, refresh=None)\n\nA callable like fn that checks the entries of fn.__code__ on the arguments "
              "themselves\nand runs the first that holds; else calls fn with `handler` set. fn may be a copy of the function `followed`: "
              "refresh() is\ncalled before a call when the code or defaults of that function are other objects than before.",
    .tp_new = dispatcher_new,
    .tp_dealloc = dispatcher_dealloc,
    .tp_traverse = dispatcher_traverse,
    .tp_clear = dispatcher_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Dispatcher, vectorcall),
    .tp_descr_get = dispatcher_get,
    .tp_repr = dispatcher_repr,
    .tp_methods = dispatcher_methods,
    .tp_members = dispatcher_members,
    .tp_getset = dispatcher_getset,
    .tp_dictoffset = offsetof(Dispatcher, dict),
    .tp_weaklistoffset = offsetof(Dispatcher, weakrefs),
    .tp_free = PyObject_GC_Del,
};
