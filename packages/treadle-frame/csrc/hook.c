/* The PEP 523 evaluator and the state of each thread.
 *
 *     call of a Python function
 *       `- evaluate_frame
 *            |- hook off, generator, class body, skipped code ------------> default evaluator
 *            |- entries that run the original code rest ------------------> default evaluator
 *            |- an entry's guard holds -----------------------------------> tf_run_entry
 *            |- RUN_CACHED ------------------------------------------------> default evaluator
 *            `- handler(FrameInfo), hook off -- Entry ---------------------> tf_run_entry
 *                                           |- SKIP, RUN_ONCE -------------> default evaluator
 *                                           |- RUN_ONCE_BELOW -------------> default evaluator, hook off
 *                                           |- RecursionError -------------> default evaluator
 *                                           `- exception ------------------> to the caller
 *
 * The evaluator is installed while at least one thread's state is not off, since an installed evaluator keeps CPython
 * from inlining Python-to-Python calls. It is never installed over somebody else's, and uninstalled only if still ours.
 */
#include "treadle_frame.h"
#include <pthread.h>

static _Thread_local ThreadHook *this_thread = NULL;
static Py_ssize_t n_hooked_threads = 0;

static PyObject *evaluate_frame(PyThreadState *, _PyInterpreterFrame *, int);

/* ---- installing ---------------------------------------------------------------------------------------------------- */

static int
install(void)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (current != _PyEval_EvalFrameDefault && current != evaluate_frame) {
        PyErr_SetString(tf_evaluator_error, "another frame evaluator (PEP 523) is active; treadle_frame does not install "
                                            "its own over it");
        return -1;
    }
    n_hooked_threads++;
    if (current != evaluate_frame) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate_frame);
    }
    return 0;
}

static void
uninstall(void)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    n_hooked_threads--;
    if (n_hooked_threads == 0 && _PyInterpreterState_GetEvalFrameFunc(interpreter) == evaluate_frame) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, _PyEval_EvalFrameDefault);
    }
}

bool
tf_leaves_to_other_evaluator(PyObject *handler)
{
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
    if (current == _PyEval_EvalFrameDefault || current == evaluate_frame) {
        return false;
    }
    PyObject *answer = PyObject_CallMethod(handler, "expects_evaluator", NULL);
    int expected = answer == NULL ? 0 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    PyErr_Clear();
    return expected > 0;
}

/* ---- deep recursion ---------------------------------------------------------------------------------------------------- */

/* Under an installed evaluator each call of a Python function takes C stack, which CPython alone does not need. Where little is left
 * of it, the evaluator is taken away for the calls below this one: they run as if there were no hook. Other threads miss it meanwhile. */

static _Thread_local char *stack_reserve = NULL;        /* below this address little is left; NULL: not known yet */

static bool
is_stack_low(PyThreadState *tstate)
{
    char here;
#if PY_VERSION_HEX >= 0x030C0000
    if (tstate->c_recursion_remaining < TF_C_RECURSION_LIMIT / 2) {
        return true;
    }
#endif
    if (stack_reserve == NULL) {
        pthread_attr_t attributes;
        void *lowest = NULL;
        size_t size = 0;
        if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
            (void)pthread_attr_getstack(&attributes, &lowest, &size);
            (void)pthread_attr_destroy(&attributes);
        }
        stack_reserve = (char *)lowest + size / 2;
    }
    return &here < stack_reserve;
}

static PyObject *
evaluate_without_hook(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    if (_PyInterpreterState_GetEvalFrameFunc(interpreter) != evaluate_frame) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    }
    _PyInterpreterState_SetEvalFrameFunc(interpreter, _PyEval_EvalFrameDefault);
    PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    if (n_hooked_threads > 0 && _PyInterpreterState_GetEvalFrameFunc(interpreter) == _PyEval_EvalFrameDefault) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate_frame);
    }
    return result;
}

/* ---- the thread's state ---------------------------------------------------------------------------------------------- */

static const char capsule_name[] = "treadle_frame.thread";

static void
thread_free(PyObject *capsule)
{
    ThreadHook *thread = PyCapsule_GetPointer(capsule, capsule_name);
    if (this_thread == thread) {
        this_thread = NULL;
    }
    if (thread->counted) {
        uninstall();
    }
    PyObject *state = thread->state;
    PyMem_Free(thread);
    Py_XDECREF(state);
}

ThreadHook *
tf_thread(void)
{
    return this_thread != NULL && this_thread->tstate == PyThreadState_Get() ? this_thread : NULL;
}

ThreadHook *
tf_thread_create(void)
{
    ThreadHook *thread = tf_thread();
    if (thread != NULL) {
        return thread;
    }
    PyObject *dict = PyThreadState_GetDict();
    PyObject *capsule = dict == NULL ? NULL : PyDict_GetItemString(dict, capsule_name);
    if (capsule != NULL) {
        return this_thread = PyCapsule_GetPointer(capsule, capsule_name);
    }
    if (dict == NULL || PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_RuntimeError, "treadle_frame works in the main interpreter only");
        return NULL;
    }
    thread = PyMem_Calloc(1, sizeof(ThreadHook));
    if (thread == NULL) {
        return (ThreadHook *)PyErr_NoMemory();
    }
    thread->tstate = PyThreadState_Get();
    capsule = PyCapsule_New(thread, capsule_name, thread_free);
    if (capsule == NULL) {
        PyMem_Free(thread);
        return NULL;
    }
    int failed = PyDict_SetItemString(dict, capsule_name, capsule);
    Py_DECREF(capsule);
    return failed ? NULL : (this_thread = thread);
}

/* Makes `counted` and the installed evaluator agree with whether the hook is on. */
static int
count_thread(ThreadHook *thread, bool on)
{
    if (on && !thread->counted && install() < 0) {
        return -1;
    }
    if (!on && thread->counted) {
        uninstall();
    }
    thread->counted = on;
    return 0;
}

int
tf_thread_set(ThreadHook *thread, PyObject *state)
{
    if (count_thread(thread, state != NULL) < 0) {
        Py_XDECREF(state);
        return -1;
    }
    Py_XSETREF(thread->state, state);
    return 0;
}

PyObject *
tf_thread_pause(ThreadHook *thread)
{
    PyObject *paused = thread->state;
    thread->state = NULL;
    return paused;
}

/* Whatever was set meanwhile is overruled. When the evaluator can no longer be installed because another one has come,
 * the hook stays off and a warning says so; -1 only when warnings are errors. Keeps an exception that is set. */
int
tf_thread_unpause(ThreadHook *thread, PyObject *paused)
{
    if (thread->state == NULL && thread->counted == (paused != NULL)) {
        thread->state = paused;
        return 0;
    }
    TfException exception = tf_exception_take();
    if (tf_thread_set(thread, paused) < 0) {
        PyErr_Clear();
        (void)tf_thread_set(thread, NULL);
        if (PyErr_WarnEx(tf_evaluator_warning, "another frame evaluator (PEP 523) was installed meanwhile; the hook of "
                                               "treadle_frame is off in this thread now", 1) < 0) {
            TfException warning = tf_exception_take();
            tf_exception_put_back(exception);
            PyErr_Clear();
            tf_exception_put_back(warning);
            return -1;
        }
    }
    tf_exception_put_back(exception);
    return 0;
}

/* ---- FrameInfo --------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *code, *globals, *builtins, *closure, *locals, *function;     /* owned */
} FrameInfo;

static PyObject *
frame_locals(_PyInterpreterFrame *frame)
{
    PyCodeObject *code = tf_frame_code(frame);
    PyObject *locals = PyDict_New();
    for (int i = 0; locals != NULL && i < tf_n_arguments(code); i++) {
        if (PyDict_SetItem(locals, PyTuple_GET_ITEM(code->co_localsplusnames, i), frame->localsplus[i]) < 0) {
            Py_CLEAR(locals);
        }
    }
    return locals;
}

static PyObject *
frame_info(_PyInterpreterFrame *frame)
{
    PyObject *locals = frame_locals(frame);
    FrameInfo *info = locals == NULL ? NULL : PyObject_GC_New(FrameInfo, &FrameInfo_Type);
    if (info == NULL) {
        Py_XDECREF(locals);
        return NULL;
    }
    PyFunctionObject *function = (PyFunctionObject *)tf_frame_function(frame);
    info->code = Py_NewRef((PyObject *)tf_frame_code(frame));
    info->globals = Py_NewRef(frame->f_globals);
    info->builtins = Py_NewRef(frame->f_builtins);
    info->closure = Py_NewRef(function->func_closure == NULL ? Py_None : function->func_closure);
    info->locals = locals;
    info->function = Py_NewRef((PyObject *)function);
    PyObject_GC_Track(info);
    return (PyObject *)info;
}

static int
frame_info_traverse(PyObject *self, visitproc visit, void *arg)
{
    FrameInfo *info = (FrameInfo *)self;
    Py_VISIT(info->code);
    Py_VISIT(info->globals);
    Py_VISIT(info->builtins);
    Py_VISIT(info->closure);
    Py_VISIT(info->locals);
    Py_VISIT(info->function);
    return 0;
}

static int
frame_info_clear(PyObject *self)
{
    FrameInfo *info = (FrameInfo *)self;
    Py_CLEAR(info->code);
    Py_CLEAR(info->globals);
    Py_CLEAR(info->builtins);
    Py_CLEAR(info->closure);
    Py_CLEAR(info->locals);
    Py_CLEAR(info->function);
    return 0;
}

static void
frame_info_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    frame_info_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
frame_info_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<FrameInfo of %R>", ((FrameInfo *)self)->code);
}

static PyMemberDef frame_info_members[] = {
    {"code", T_OBJECT, offsetof(FrameInfo, code), READONLY, "The code object about to run."},
    {"globals", T_OBJECT, offsetof(FrameInfo, globals), READONLY, NULL},
    {"builtins", T_OBJECT, offsetof(FrameInfo, builtins), READONLY, NULL},
    {"closure", T_OBJECT, offsetof(FrameInfo, closure), READONLY, "The function's tuple of cells, or None."},
    {"locals", T_OBJECT, offsetof(FrameInfo, locals), READONLY, "A new dict: argument name to value."},
    {"function", T_OBJECT, offsetof(FrameInfo, function), READONLY, "The function object that is called."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject FrameInfo_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "treadle_frame.FrameInfo",
    .tp_basicsize = sizeof(FrameInfo),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The frame that is about to run, as a handler sees it.",
    .tp_dealloc = frame_info_dealloc,
    .tp_traverse = frame_info_traverse,
    .tp_clear = frame_info_clear,
    .tp_repr = frame_info_repr,
    .tp_members = frame_info_members,
    .tp_free = PyObject_GC_Del,
};

/* ---- the evaluator -------------------------------------------------------------------------------------------------------- */

/* The handler's answer, a new reference, or NULL with an exception set. The hook is off while it runs, and the evaluator
 * uninstalled if no other thread needs it. */
static PyObject *
ask_handler(ThreadHook *thread, _PyInterpreterFrame *frame)
{
    PyObject *info = frame_info(frame);
    if (info == NULL) {
        return NULL;
    }
    tf_counters.handler_calls++;
    tf_work_done++;
    PyObject *handler = tf_thread_pause(thread);
    (void)count_thread(thread, false);
    PyObject *answer = PyObject_CallOneArg(handler, info);
    Py_DECREF(info);
    if (tf_thread_unpause(thread, handler) < 0) {
        Py_CLEAR(answer);
    }
    return answer;
}

static void
frame_view(_PyInterpreterFrame *frame, GuardView *view)
{
    *view = (GuardView){
        .slots = frame->localsplus,
        .globals = frame->f_globals,
        .builtins = frame->f_builtins,
        .closure = ((PyFunctionObject *)tf_frame_function(frame))->func_closure,
    };
}

/* A code whose fresh entries so many times did not hold for their own calls is left alone: each call would ask the handler again. */
enum { MOST_STALE_ENTRIES = 8 };

/* Counts one such entry. -1 with an exception set. */
static int
note_stale_entry(PyCodeObject *code)
{
    CodeCache *cache = tf_cache_create(code);
    if (cache == NULL) {
        return -1;
    }
    cache->stale_entries++;
    cache->skip = cache->skip || cache->stale_entries >= MOST_STALE_ENTRIES;
    return 0;
}

/* A fresh entry goes into the cache if its guard is true of the frame it was made for: 1, 0 (a warning was given), -1. */
static int
accept_entry(ThreadHook *thread, PyCodeObject *code, Entry *entry, GuardView *view)
{
    if (tf_cache_accepts(code, entry) < 0) {
        return -1;
    }
    PyObject *paused = tf_thread_pause(thread);
    Py_ssize_t failed = 0;
    int holds = tf_entry_holds(entry, view);
    if (holds == 0) {
        holds = tf_program_first_failure(entry->guard, view, &failed);
        if (holds == 0 && note_stale_entry(code) < 0) {
            holds = -1;
        }
        if (holds == 0
            && PyErr_WarnFormat(tf_stale_warning, 1, "the new entry for %R is not used: its guard does not hold for the "
                                "call it was made for: %U", code->co_name, entry->guard->in_order[failed]->reason) < 0) {
            holds = -1;
        }
    }
    if (tf_thread_unpause(thread, paused) < 0 || (holds == 1 && tf_cache_add(code, entry) < 0)) {
        return -1;
    }
    return holds;
}

static bool
is_eligible(PyCodeObject *code, _PyInterpreterFrame *frame)
{
    return tf_is_plain_function_code(code) && frame->owner == FRAME_OWNED_BY_THREAD && frame->f_locals == NULL;
}

/* How a frame is to run. */
enum { CHOICE_FAILED = -1, CHOICE_ORIGINAL = 0, CHOICE_ENTRY = 1, CHOICE_HOOK_OFF = 2 };

/* CHOICE_ENTRY comes with a new reference to the entry; at CHOICE_FAILED an exception is set. */
static int
choose_entry(ThreadHook *thread, PyCodeObject *code, _PyInterpreterFrame *frame, Entry **entry)
{
    GuardView view;
    frame_view(frame, &view);
    int found = tf_cache_find(code, &view, entry);
    if (found != CHOICE_ORIGINAL) {
        tf_counters.hits += found == CHOICE_ENTRY;
        return found;
    }
    tf_counters.misses++;
    if (thread->state == NULL || thread->state == tf_run_cached) {
        return CHOICE_ORIGINAL;
    }
    PyObject *answer = ask_handler(thread, frame);
    if (answer == NULL) {
        /* The program may have room for this call, although the handler has none. */
        if (!PyErr_ExceptionMatches(PyExc_RecursionError)) {
            return CHOICE_FAILED;
        }
        PyErr_Clear();
        return CHOICE_ORIGINAL;
    }
    if (Py_IS_TYPE(answer, &Entry_Type)) {
        int accepted = accept_entry(thread, code, (Entry *)answer, &view);
        *entry = (Entry *)answer;
        if (accepted <= 0) {
            Py_CLEAR(*entry);
        }
        return accepted;
    }
    int result = CHOICE_ORIGINAL;
    if (answer == tf_skip) {
        result = tf_cache_set_skip(code, true);
    }
    else if (answer == tf_skip_below) {
        result = tf_cache_set_skip_below(code);
    }
    else if (answer == tf_run_once_below) {
        result = CHOICE_HOOK_OFF;
    }
    else if (answer != tf_run_once) {
        PyErr_Format(PyExc_TypeError, "a handler must return an Entry, SKIP, SKIP_BELOW, RUN_ONCE or RUN_ONCE_BELOW, not %R",
                     answer);
        result = CHOICE_FAILED;
    }
    Py_DECREF(answer);
    return result;
}

static PyObject *
evaluate_frame(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag)
{
    ThreadHook *thread = this_thread;
    if (is_stack_low(tstate)) {
        return evaluate_without_hook(tstate, frame, throwflag);
    }
    if (thread == NULL || thread->state == NULL || throwflag || thread->tstate != tstate) {
        goto eval_default;
    }
    PyCodeObject *code = tf_frame_code(frame);
    if (thread->pass_through == code) {
        thread->pass_through = NULL;
        goto eval_default;
    }
    if (!is_eligible(code, frame)) {
        goto eval_default;
    }
    CodeCache *cache = tf_cache_of(code);
    if (cache != NULL && cache->skip) {
        if (cache->skip_below) {
            goto eval_hook_off;
        }
        goto eval_default;
    }
    if (thread->state == tf_run_cached && (cache == NULL || PyTuple_GET_SIZE(cache->entries) == 0)) {
        goto eval_default;
    }
    if (cache != NULL && tf_cache_rests(cache)) {
        goto eval_default;
    }
    Entry *entry = NULL;
    int chosen = choose_entry(thread, code, frame, &entry);
    if (chosen == CHOICE_FAILED) {
        return tf_leave_frame(tstate, frame, NULL);
    }
    if (chosen == CHOICE_ENTRY && entry->runs_original) {
        Py_DECREF(entry);
        goto eval_default;
    }
    if (chosen == CHOICE_ENTRY) {
        tf_work_done++;
        return tf_run_entry(tstate, frame, entry);
    }
    cache = tf_cache_of(code);
    if (chosen != CHOICE_HOOK_OFF && (cache == NULL || !cache->skip_below)) {
        goto eval_default;
    }
eval_hook_off: {
    PyObject *paused = tf_thread_pause(thread);
    PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    if (tf_thread_unpause(thread, paused) < 0) {
        Py_CLEAR(result);
    }
    return result;
}
eval_default:
    return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
}

/* ---- module functions ------------------------------------------------------------------------------------------------------ */

static PyObject *
module_set_handler(PyObject *module, PyObject *given)
{
    if (given != Py_None && given != tf_run_cached && !PyCallable_Check(given)) {
        PyErr_Format(PyExc_TypeError, "handler: must be None, RUN_CACHED or a callable, not %R", given);
        return NULL;
    }
    ThreadHook *thread = given == Py_None ? tf_thread() : tf_thread_create();
    if (thread == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    PyObject *previous = Py_NewRef(thread->state == NULL ? Py_None : thread->state);
    if (tf_thread_set(thread, given == Py_None ? NULL : Py_NewRef(given)) < 0) {
        Py_DECREF(previous);
        return NULL;
    }
    return previous;
}

static PyObject *
module_get_handler(PyObject *module, PyObject *nothing)
{
    ThreadHook *thread = tf_thread();
    return Py_NewRef(thread == NULL || thread->state == NULL ? Py_None : thread->state);
}

static PyObject *
module_is_installed(PyObject *module, PyObject *nothing)
{
    return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == evaluate_frame);
}

PyMethodDef tf_hook_methods[] = {
    {"set_handler", module_set_handler, METH_O,
     "set_handler(handler) -> previous\n\nSets this thread's state: None (off), RUN_CACHED (use entries, never ask), or a "
     "callable that\nis called for each function frame for which no entry's guard holds. EvaluatorError (a RuntimeError)\n"
     "when another PEP 523 evaluator is active."},
    {"get_handler", module_get_handler, METH_NOARGS, "get_handler() -> this thread's state, None inside a handler."},
    {"is_installed", module_is_installed, METH_NOARGS, "is_installed() -> bool: whether CPython calls this hook now."},
    {NULL, NULL, 0, NULL},
};
