/* Running replacement code.
 *
 *     caller                            caller
 *       `- evaluator(frame of f)          `- evaluator(frame of f)       an entry's guard holds
 *            `- default: f's code              `- frame.code = replacement, further locals = NULL
 *                                                   `- default: the replacement's code
 *
 * The frame that CPython made for the call stays: arguments, globals, builtins and function (with the closure) are in it.
 * Only its code is exchanged, and the stretch of data stack it takes is made longer where the replacement needs more.
 * The frame is the topmost of the data stack when the evaluator is called, so that is one addition, and popping a frame
 * never asks for its length. Where the chunk of the data stack has no room, the replacement is called as a function.
 * So no frame is ever pushed, cleared or popped here, which from 3.12 on needs symbols that libpython hides.
 */
#include "treadle_frame.h"

static PyCodeObject *leave_code = NULL;

/* `return None` without RESUME: no line, no trace event, no check for signals. */
int
tf_run_init(void)
{
    if (leave_code != NULL) {
        return 0;
    }
    const char body[] = {(char)LOAD_CONST, 0, (char)RETURN_VALUE, 0};
    PyObject *code = Py_CompileString("None", "<treadle_frame>", Py_eval_input);
    PyObject *replace = code == NULL ? NULL : PyObject_GetAttrString(code, "replace");
    PyObject *kwargs = replace == NULL ? NULL
                                       : Py_BuildValue("{s:y#,s:(O)}", "co_code", body, (Py_ssize_t)sizeof body,
                                                       "co_consts", Py_None);
    PyObject *none = kwargs == NULL ? NULL : PyTuple_New(0);
    if (none != NULL) {
        leave_code = (PyCodeObject *)PyObject_Call(replace, none, kwargs);
    }
    Py_XDECREF(code);
    Py_XDECREF(replace);
    Py_XDECREF(kwargs);
    Py_XDECREF(none);
    return leave_code == NULL ? -1 : 0;
}

PyObject *
tf_leave_frame(PyThreadState *tstate, _PyInterpreterFrame *frame, PyObject *result)
{
#if TF_CALLER_CLEARS_FRAME
    return result;
#else
    /* Only the default evaluator can pop a frame, so let it run the shortest code there is. */
    TfException exception = tf_exception_take();
    int n = frame->stacktop;
    frame->stacktop = 0;
    for (int i = 0; i < n; i++) {
        Py_CLEAR(frame->localsplus[i]);
    }
    PyCodeObject *old = tf_frame_set_code(frame, (PyCodeObject *)Py_NewRef(leave_code));
    Py_DECREF(old);
    PyObject *nothing = _PyEval_EvalFrameDefault(tstate, frame, 0);
    if (nothing == NULL) {
        PyErr_Clear();          /* RecursionError: the frame has been popped all the same */
    }
    Py_XDECREF(nothing);
    tf_exception_put_back(exception);
    return result;
#endif
}

/* Makes sure that the frame has room for `replacement`. */
static bool
make_room(PyThreadState *tstate, _PyInterpreterFrame *frame, PyCodeObject *replacement)
{
    PyObject **start = (PyObject **)frame;
    Py_ssize_t have = tf_frame_words(tf_frame_code(frame)), need = tf_frame_words(replacement);
    if (need <= have) {
        return true;
    }
    if (start + have != tstate->datastack_top || need >= tstate->datastack_limit - start) {
        return false;
    }
    tstate->datastack_top = start + need;
    return true;
}

PyObject *
tf_run_entry(PyThreadState *tstate, _PyInterpreterFrame *frame, Entry *entry)
{
    PyCodeObject *code = tf_frame_code(frame), *replacement = entry->code;
    if (!make_room(tstate, frame, replacement)) {
        PyObject *function = tf_function_like(tf_frame_function(frame), replacement), *result = NULL;
        if (function != NULL) {
            result = tf_call_with_slots(function, code, frame->localsplus);
            Py_DECREF(function);
        }
        Py_DECREF(entry);
        return tf_leave_frame(tstate, frame, result);
    }
    for (int i = tf_n_arguments(replacement); i < replacement->co_nlocalsplus; i++) {
        frame->localsplus[i] = NULL;
    }
    PyCodeObject *old = tf_frame_set_code(frame, (PyCodeObject *)Py_NewRef(replacement));
    Py_DECREF(old);
    Py_DECREF(entry);           /* the frame holds what it runs, so the entry may go any time */
    return _PyEval_EvalFrameDefault(tstate, frame, 0);
}

PyObject *
tf_function_like(PyObject *function, PyCodeObject *code)
{
    PyFunctionObject *model = (PyFunctionObject *)function;
    PyObject *made = PyFunction_NewWithQualName((PyObject *)code, model->func_globals, model->func_qualname);
    if (made == NULL) {
        return NULL;
    }
    PyFunctionObject *like = (PyFunctionObject *)made;
    Py_XSETREF(like->func_builtins, Py_XNewRef(model->func_builtins));
    Py_XSETREF(like->func_closure, Py_XNewRef(model->func_closure));
    return made;
}

/* Positional values and keyword names as vectorcall wants them. */
typedef struct {
    PyObject **values;          /* owned array of borrowed values, one free place in front */
    Py_ssize_t n_positional;
    PyObject *keyword_names;    /* owned tuple or NULL */
} CallArguments;

static int
unpack_slots(PyCodeObject *code, PyObject *const *slots, CallArguments *call)
{
    int next = code->co_argcount + code->co_kwonlyargcount;
    PyObject *more = code->co_flags & CO_VARARGS ? slots[next++] : NULL;
    PyObject *keywords = code->co_flags & CO_VARKEYWORDS ? slots[next] : NULL;
    Py_ssize_t n_more = more == NULL ? 0 : PyTuple_GET_SIZE(more);
    Py_ssize_t n_keywords = code->co_kwonlyargcount + (keywords == NULL ? 0 : PyDict_GET_SIZE(keywords));
    call->n_positional = code->co_argcount + n_more;
    call->values = PyMem_Calloc((size_t)(1 + call->n_positional + n_keywords), sizeof(PyObject *));
    call->keyword_names = n_keywords == 0 ? NULL : PyTuple_New(n_keywords);
    if (call->values == NULL || (n_keywords > 0 && call->keyword_names == NULL)) {
        PyMem_Free(call->values);
        Py_XDECREF(call->keyword_names);
        PyErr_NoMemory();
        return -1;
    }
    PyObject **end = call->values + 1;
    for (int i = 0; i < code->co_argcount; i++) {
        *end++ = slots[i];
    }
    for (Py_ssize_t i = 0; i < n_more; i++) {
        *end++ = PyTuple_GET_ITEM(more, i);
    }
    Py_ssize_t at = 0;
    for (int i = code->co_argcount; i < code->co_argcount + code->co_kwonlyargcount; i++) {
        PyTuple_SET_ITEM(call->keyword_names, at++, Py_NewRef(PyTuple_GET_ITEM(code->co_localsplusnames, i)));
        *end++ = slots[i];
    }
    PyObject *key, *value;
    for (Py_ssize_t position = 0; keywords != NULL && PyDict_Next(keywords, &position, &key, &value);) {
        PyTuple_SET_ITEM(call->keyword_names, at++, Py_NewRef(key));
        *end++ = value;
    }
    return 0;
}

/* No Python code runs between marking the code as one to pass through and the evaluator seeing its frame. */
static PyObject *
call_past_hook(PyObject *function, PyObject *const *values, size_t n_positional, PyObject *keyword_names)
{
    ThreadHook *thread = tf_thread();
    if (thread == NULL) {
        return PyObject_Vectorcall(function, values, n_positional, keyword_names);
    }
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(function);
    thread->pass_through = code;
    PyObject *result = PyObject_Vectorcall(function, values, n_positional, keyword_names);
    if (thread->pass_through == code) {
        thread->pass_through = NULL;    /* no frame was made, or the evaluator is not ours */
    }
    return result;
}

PyObject *
tf_call_with_slots(PyObject *function, PyCodeObject *code, PyObject *const *slots)
{
    if (code->co_kwonlyargcount == 0 && !(code->co_flags & (CO_VARARGS | CO_VARKEYWORDS))) {
        return call_past_hook(function, slots, (size_t)code->co_argcount, NULL);
    }
    CallArguments call;
    if (unpack_slots(code, slots, &call) < 0) {
        return NULL;
    }
    PyObject *result = call_past_hook(function, call.values + 1, (size_t)call.n_positional | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                      call.keyword_names);
    PyMem_Free(call.values);
    Py_XDECREF(call.keyword_names);
    return result;
}
