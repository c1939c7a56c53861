/* What the C files of treadle_frame._core share: the objects, and who owns what.
 *
 *   module.c      module, sentinels, counters
 *   hook.c        the PEP 523 evaluator, the thread's state, asking the handler
 *   frame_run.c   running replacement code in the current frame
 *   cache.c       Entry objects and the cache of entries in a code object
 *   guard_program.c   reads checks into a trie;  guard_eval.c  descends it
 *   guard_checks.c    the single checks, as a table;  guard_facts.c  those of what lookups find
 *   dispatcher.c  the frameless path
 *
 * All state is protected by the GIL. "Owned" means the holder has a reference, "borrowed" that somebody named has.
 */
#ifndef TREADLE_FRAME_H
#define TREADLE_FRAME_H

#include "compat.h"
#include <stdbool.h>
#include <stdint.h>

/* ---- guard programs ------------------------------------------------------------------------------------------- */

typedef enum {
#define ROOT(name, argument) STEP_##name,
#define ACCESSOR(name, argument) STEP_##name,
#include "guard_steps.def"
#undef ROOT
#undef ACCESSOR
    STEP_COUNT
} StepKind;

/* Where a check's argument names the further paths that the check looks at. */
typedef enum {
    PATHS_NONE,                 /* the check looks at one value */
    PATHS_ARGUMENT,             /* the argument is one path */
    PATHS_IN_ARGUMENT,          /* the argument is a sequence of paths */
    PATHS_IN_SECOND,            /* the argument is a pair, whose second item is a sequence of paths */
} OtherPaths;

typedef struct GuardCheck GuardCheck;

/* One kind of check. Paths in the argument are read by guard_program.c, after `prepare`. */
typedef struct {
    const char *name;
    /* Validates the argument and stores what the test needs; -1 with an error set. */
    int (*prepare)(GuardCheck *, PyObject *where);
    /* 1 holds, 0 fails, -1 with an exception set. */
    int (*test)(const GuardCheck *, PyObject *value, PyObject *const *others);
    OtherPaths others;
} CheckKind;

extern const CheckKind tf_check_kinds[];
extern const size_t tf_n_check_kinds;

typedef struct NativeTest NativeTest;
typedef struct ItemPairs ItemPairs;
typedef struct TypeFacts TypeFacts;

struct GuardCheck {
    struct GuardCheck *next;    /* in the node, or in the program's list of checks on several paths */
    struct GuardNode *node;     /* borrowed from the trie: the path that is checked */
    const CheckKind *kind;
    PyObject *arg;              /* owned */
    PyObject *reason;           /* owned str */
    Py_ssize_t number;          /* len: the expected length */
    int (*function)(PyObject *, void *);    /* capsule */
    void *context;              /* capsule */
    NativeTest *native;         /* owned */
    ItemPairs *pairs;           /* owned: equal_items */
    TypeFacts *type_facts;      /* owned: type_lookup */
    struct GuardNode **others;  /* owned array of borrowed nodes: further paths */
    Py_ssize_t n_others;
};

typedef struct GuardNode {
    struct GuardNode *next;     /* sibling */
    struct GuardNode *children; /* owned list */
    struct GuardNode *parent;   /* borrowed, NULL at a root */
    GuardCheck *checks;         /* owned list, in the order given */
    PyObject *key;              /* owned, or NULL */
    Py_ssize_t index;           /* list_item, tuple_item, dict_key; for local and closure: number of the bound name */
    int capture;                /* where a check on several paths finds this value, or -1 */
    StepKind kind;
} GuardNode;

typedef struct {
    PyObject_HEAD
    PyObject *checks;           /* owned tuple: the checks as given */
    PyObject *names;            /* owned list of (kind, name): the locals and free variables that the roots name */
    PyObject *freevars;         /* owned tuple, or NULL until an Entry binds the program */
    GuardNode *roots;           /* owned list */
    GuardCheck *cross;          /* owned list: checks on several paths, after all others */
    GuardCheck **in_order;      /* owned array of borrowed checks, in the order given */
    Py_ssize_t n_checks;
    int n_captures;
    int running;                /* evaluations in progress (guards may run Python code that evaluates them again) */
    PyObject *weakrefs;
} GuardProgram;

/* Where the roots of a program find their values. */
typedef struct {
    PyObject *const *slots;     /* borrowed argument values, or NULL */
    const int *bound;           /* slot of each of program->names: argument slot or index in `closure` */
    PyObject *locals;           /* borrowed mapping, used where slots is NULL */
    PyObject *globals;          /* borrowed, or NULL */
    PyObject *builtins;         /* borrowed, or NULL */
    PyObject *closure;          /* borrowed tuple of cells (with slots), mapping name -> cell (without), or NULL */
} GuardView;

#define TF_MAX_CAPTURES_ON_STACK 16

extern PyTypeObject GuardProgram_Type;
int *tf_program_bind(GuardProgram *, PyCodeObject *);           /* new array (PyMem), or NULL with ValueError set */
int tf_program_holds(GuardProgram *, const GuardView *);        /* 1, 0, -1 with a BaseException set */
int tf_program_first_failure(GuardProgram *, const GuardView *, Py_ssize_t *);  /* as above; 0 fills in the index */
int tf_program_add_vocabulary(PyObject *module);                 /* ROOTS, ACCESSORS, OPS: the names in the tables */
void tf_program_promote(GuardNode **list, GuardNode *node);

int tf_clear_ordinary_error(void);                              /* 0: cleared; -1: not an Exception, still set */
int tf_check_test(const GuardCheck *, PyObject *value, PyObject *const *others);
void tf_check_free_argument(GuardCheck *);

int tf_prepare_type_lookup(GuardCheck *, PyObject *where);
int tf_test_type_lookup(const GuardCheck *, PyObject *value, PyObject *const *others);
int tf_prepare_function_code(GuardCheck *, PyObject *where);
int tf_test_function_code(const GuardCheck *, PyObject *value, PyObject *const *others);
int tf_prepare_unset(GuardCheck *, PyObject *where);
int tf_test_unset(const GuardCheck *, PyObject *value, PyObject *const *others);
PyObject *tf_descriptor_value(PyObject *descriptor, PyObject *owner);   /* `descriptor.__get__(owner)`: new reference or NULL */

static inline bool
tf_check_is_cross(const GuardCheck *check)
{
    return check->kind->others != PATHS_NONE;
}

int tf_same_value(PyObject *, PyObject *);                      /* same type and equal, strictly; 1, 0, -1 */
PyObject *tf_nth_key(PyObject *mapping, Py_ssize_t);            /* new reference, NULL with or without an error */

/* ---- entries and their caches --------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyCodeObject *code;         /* owned: the replacement */
    GuardProgram *guard;        /* owned */
    int *bound;                 /* owned: see GuardView.bound */
    PyObject *payload;          /* owned */
    PyObject *fast_path;            /* owned tuple as given, or None */
    PyObject *fast_path_callable;   /* borrowed from fast_path, or NULL */
    int *fast_path_slots;           /* owned: an argument slot for each value */
    PyObject **fast_path_keys;      /* owned array of borrowed keys: index into *args, name in **kwargs, NULL the slot itself */
    Py_ssize_t n_fast_path;
    bool fast_path_unpack;
    bool fast_path_retry;       /* the code runs when the callable has raised an Exception */
    unsigned long long hits;
    PyObject *weakrefs;
} Entry;

typedef struct CodeCache {
    struct CodeCache *previous, *next;  /* all caches, for reset() */
    PyCodeObject *code;         /* borrowed: the cache dies with it */
    PyObject *entries;          /* owned tuple, replaced as a whole, so that a loop over it stays valid */
    bool skip;
    bool skip_below;            /* the hook is off in what the code calls, too */
} CodeCache;

extern PyTypeObject Entry_Type;
int tf_cache_init(void);
CodeCache *tf_cache_of(PyCodeObject *);                         /* NULL when there is none; never an error */
/* Finds the entry whose guard holds: 1 and a new reference, 0, or -1 with an exception set. Runs with the hook off. */
int tf_cache_find(PyCodeObject *, GuardView *, Entry **);
int tf_cache_accepts(PyCodeObject *, Entry *);                   /* -1 with LayoutError set: it cannot run in its place */
int tf_cache_add(PyCodeObject *, Entry *);
int tf_cache_set_skip(PyCodeObject *, bool);
int tf_cache_set_skip_below(PyCodeObject *);
int tf_entry_holds(Entry *, GuardView *);
/* The values of a fast-path entry, borrowed from the slots: 1, or 0 when *args or **kwargs lack one (its guard is too weak). */
int tf_entry_fast_path_values(Entry *, PyObject *const *slots, PyObject **values);
extern PyMethodDef tf_cache_methods[];

/* Argument slots: positional, keyword-only, *args, **kwargs. */
static inline int
tf_n_arguments(PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0)
           + ((code->co_flags & CO_VARKEYWORDS) != 0);
}

#define TF_GENERATOR_FLAGS (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE)

static inline bool
tf_is_plain_function_code(PyCodeObject *code)
{
    const int required = CO_OPTIMIZED | CO_NEWLOCALS;
    return (code->co_flags & (required | TF_GENERATOR_FLAGS)) == required;
}

/* ---- the hook -------------------------------------------------------------------------------------------------- */

/* One per Python thread that ever set a handler; owned by a capsule in the thread's dict. */
typedef struct {
    PyThreadState *tstate;      /* borrowed, for identity only */
    PyObject *state;            /* owned: NULL = off, RUN_CACHED, or the handler */
    bool counted;               /* this thread is one of those for which the evaluator is installed */
    PyCodeObject *pass_through; /* borrowed: the next frame of this code is run as it is */
} ThreadHook;

ThreadHook *tf_thread(void);                                    /* this thread's, or NULL if it never set a handler */
ThreadHook *tf_thread_create(void);                             /* this thread's, made if need be; NULL with an error */
int tf_thread_set(ThreadHook *, PyObject *state);               /* steals `state` (NULL = off) also on failure; -1, error */
/* Turns the hook off for this thread and back on; cheap, the evaluator stays installed. */
PyObject *tf_thread_pause(ThreadHook *);
int tf_thread_unpause(ThreadHook *, PyObject *paused);
extern PyMethodDef tf_hook_methods[];
extern PyTypeObject FrameInfo_Type;

/* ---- running replacement code ---------------------------------------------------------------------------------- */

int tf_run_init(void);
/* Runs `entry` (stolen) in a frame that has not started. */
PyObject *tf_run_entry(PyThreadState *, _PyInterpreterFrame *, Entry *);
/* Gets rid of a frame that has not started, as an evaluation function must; passes `result` and the exception on. */
PyObject *tf_leave_frame(PyThreadState *, _PyInterpreterFrame *, PyObject *result);
/* A function of `code` with the surroundings of `function`. */
PyObject *tf_function_like(PyObject *function, PyCodeObject *code);
/* Calls `function`, whose code has the argument slots of `code`, past the hook. */
PyObject *tf_call_with_slots(PyObject *function, PyCodeObject *code, PyObject *const *slots);

/* ---- module ---------------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned long long hits, misses, guard_evals, handler_calls, dispatcher_hits, dispatcher_misses;
} Counters;

extern Counters tf_counters;
extern PyObject *tf_run_cached, *tf_skip, *tf_skip_below, *tf_run_once;         /* sentinels */
extern PyObject *tf_layout_error, *tf_guard_error, *tf_evaluator_error;     /* from errors.py */
extern PyObject *tf_stale_warning, *tf_evaluator_warning;
extern PyTypeObject Dispatcher_Type;

#endif
