/* Everything that differs between CPython 3.11, 3.12 and 3.13, and nothing else.
 *
 * Facts used here (Include/internal/pycore_frame.h and Python/ceval.c of each version):
 *   3.11  the caller of the evaluation function clears and pops the frame; `f_func`, `f_code`, `prev_instr`.
 *   3.12  the evaluation function clears and pops the frame; `f_funcobj`, `f_code`, `prev_instr`.
 *   3.13  as 3.12; `f_executable` in place of `f_code`, `instr_ptr` in place of `prev_instr`.
 * `_PyThreadState_PushFrame`, `_PyThreadState_PopFrame` and `_PyFrame_Clear` are hidden symbols of libpython in most of
 * them, so this extension never allocates, clears or pops a frame: see frame_run.c.
 */
#ifndef TREADLE_FRAME_COMPAT_H
#define TREADLE_FRAME_COMPAT_H

#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE 1
#include <Python.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_dict.h>
#include <opcode.h>
#undef Py_BUILD_CORE
#include <structmember.h>
#include <stdbool.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "treadle-frame supports CPython 3.11, 3.12 and 3.13"
#endif
#ifdef Py_GIL_DISABLED
#error "treadle-frame needs the GIL: its caches are protected by nothing else"
#endif

#if PY_VERSION_HEX >= 0x030C0000
#define TF_CALLER_CLEARS_FRAME 0
#else
#define TF_CALLER_CLEARS_FRAME 1
#endif

/* How many calls of C may nest; 3.11 has no such limit of its own. */
#if PY_VERSION_HEX >= 0x030D0000
#define TF_C_RECURSION_LIMIT Py_C_RECURSION_LIMIT
#elif PY_VERSION_HEX >= 0x030C0000
#define TF_C_RECURSION_LIMIT C_RECURSION_LIMIT
#endif

/* The frame's code object, borrowed. */
static inline PyCodeObject *
tf_frame_code(_PyInterpreterFrame *frame)
{
#if PY_VERSION_HEX >= 0x030D0000
    return (PyCodeObject *)frame->f_executable;
#else
    return frame->f_code;
#endif
}

/* The frame's function object, borrowed. */
static inline PyObject *
tf_frame_function(_PyInterpreterFrame *frame)
{
#if PY_VERSION_HEX >= 0x030C0000
    return frame->f_funcobj;
#else
    return (PyObject *)frame->f_func;
#endif
}

/* Points a frame that has not started yet at the beginning of another code object. Steals a reference to `code`, returns
 * the reference to the old one. The caller sets the locals and makes sure that the frame is large enough. */
static inline PyCodeObject *
tf_frame_set_code(_PyInterpreterFrame *frame, PyCodeObject *code)
{
    PyCodeObject *old = tf_frame_code(frame);
#if PY_VERSION_HEX >= 0x030D0000
    frame->f_executable = (PyObject *)code;
    frame->instr_ptr = _PyCode_CODE(code);
#else
    frame->f_code = code;
    frame->prev_instr = _PyCode_CODE(code) - 1;
#endif
    frame->stacktop = code->co_nlocalsplus;
    return old;
}

/* Words that a frame of this code takes on the thread's data stack. */
static inline Py_ssize_t
tf_frame_words(PyCodeObject *code)
{
#if PY_VERSION_HEX >= 0x030C0000
    return code->co_framesize;
#else
    return (Py_ssize_t)code->co_nlocalsplus + code->co_stacksize + (Py_ssize_t)FRAME_SPECIALS_SIZE;
#endif
}

static inline Py_ssize_t
tf_request_code_extra_index(freefunc free_extra)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Eval_RequestCodeExtraIndex(free_extra);
#else
    return _PyEval_RequestCodeExtraIndex(free_extra);
#endif
}

static inline int
tf_code_get_extra(PyCodeObject *code, Py_ssize_t index, void **extra)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Code_GetExtra((PyObject *)code, index, extra);
#else
    return _PyCode_GetExtra((PyObject *)code, index, extra);
#endif
}

static inline int
tf_code_set_extra(PyCodeObject *code, Py_ssize_t index, void *extra)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Code_SetExtra((PyObject *)code, index, extra);
#else
    return _PyCode_SetExtra((PyObject *)code, index, extra);
#endif
}

/* 1 and a new reference, 0 when there is no such attribute (no exception set), -1 with another exception set. */
static inline int
tf_lookup_attr(PyObject *object, PyObject *name, PyObject **result)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyObject_GetOptionalAttr(object, name, result);
#else
    return _PyObject_LookupAttr(object, name, result);
#endif
}

/* The exception in flight, taken out of the thread state. */
typedef struct {
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *value;
#else
    PyObject *type, *value, *traceback;
#endif
} TfException;

static inline TfException
tf_exception_take(void)
{
    TfException taken;
#if PY_VERSION_HEX >= 0x030C0000
    taken.value = PyErr_GetRaisedException();
#else
    PyErr_Fetch(&taken.type, &taken.value, &taken.traceback);
#endif
    return taken;
}

static inline void
tf_exception_put_back(TfException taken)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(taken.value);
#else
    PyErr_Restore(taken.type, taken.value, taken.traceback);
#endif
}

/* The same with a value that is an exception object and knows its traceback. */
static inline TfException
tf_exception_take_whole(void)
{
    TfException taken = tf_exception_take();
#if PY_VERSION_HEX < 0x030C0000
    PyErr_NormalizeException(&taken.type, &taken.value, &taken.traceback);
    if (taken.traceback != NULL) {
        PyException_SetTraceback(taken.value, taken.traceback);
    }
#endif
    return taken;
}

static inline void
tf_exception_drop(TfException taken)
{
    Py_XDECREF(taken.value);
#if PY_VERSION_HEX < 0x030C0000
    Py_XDECREF(taken.type);
    Py_XDECREF(taken.traceback);
#endif
}

/* A number that changes with every change of the class or of its bases; 0 when the class has none at present. */
static inline unsigned int
tf_type_version(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030D0000
    return type->tp_version_tag;
#else
    return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
#endif
}

/* The class's own attributes, borrowed: static built-in types of 3.12 and later keep them per interpreter. */
static inline PyObject *
tf_type_dict(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *dict = PyType_GetDict(type);
    Py_XDECREF(dict);           /* the class holds it */
    return dict;
#else
    return type->tp_dict;
#endif
}

#endif
