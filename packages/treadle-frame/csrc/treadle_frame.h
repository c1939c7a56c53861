/* What the C files of treadle_frame._core share: the objects, and who owns what.
 *
 *   module.c      module, sentinels, counters
 *   hook.c        the PEP 523 evaluator, the thread's state, asking the handler
 *   frame_run.c   running replacement code in the current frame
 *   entry.c       Entry objects;  cache.c  the cache of entries in a code object
 *   guard_program.c   the type GuardProgram;  guard_trie.c  reads checks into a trie;  guard_eval.c  descends it
 *   guard_checks.c    the single checks, as a table;  guard_facts.c  those of what lookups find;
 *                     guard_native.c  those that ask a C library;  native_read.c  asks one about many values
 *   guard_memo.c      skips what has not changed, by a list that guard_build.c makes of what guard_peek.c and guard_plain.c say;
 *                     guard_image.c  bytes of tensors;  dict_versions.c  makes versions of dicts tell of every change
 *   dispatcher.c  the frameless path, for which bind.c binds arguments
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

/* What the outcome of a check depends on, besides which object the value is. guard_memo.c runs a check of the first kind on every
 * call; the others it skips as long as the containers they depend on are unchanged (guard_peek.c). */
typedef enum {
    READS_ANYTHING = 0,
    READS_ANCHOR,               /* nothing else, and only one object passes: none that reuses the address of a dead one */
    READS_IDENTITY,             /* nothing else */
    READS_TYPE,                 /* the value's type */
    READS_VALUE,                /* the value compared with the argument */
    READS_LENGTH,
    READS_KEYS,                 /* the keys of a dict, in order */
    READS_ATTRIBUTE,            /* whether there is an attribute named by the argument */
    READS_LOOKUP,               /* what lookups in the value, a type, find */
    READS_FUNCTION,             /* code and defaults of the value, a function */
    READS_SLOT,                 /* the slot of the value that the argument, a descriptor, describes */
    READS_HANDLE,               /* what the check's image covers (guard_image.c) */
} Reads;

/* One kind of check. Paths in the argument are read by guard_program.c, after `prepare`. */
typedef struct {
    const char *name;
    /* Validates the argument and stores what the test needs; -1 with an error set. */
    int (*prepare)(GuardCheck *, PyObject *where);
    /* 1 holds, 0 fails, -1 with an exception set. */
    int (*test)(const GuardCheck *, PyObject *value, PyObject *const *others);
    OtherPaths others;
    Reads reads;
} CheckKind;

extern const CheckKind tf_check_kinds[];
extern const size_t tf_n_check_kinds;

typedef struct NativeTest NativeTest;
typedef struct ItemPairs ItemPairs;
typedef struct TypeFacts TypeFacts;
typedef struct ImageSpec ImageSpec;
typedef struct Image Image;
typedef struct GuardMemo GuardMemo;

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
    ImageSpec *spec;            /* owned: native_tensor with an image, or NULL */
    bool memoised;              /* holds as long as the witnesses of the memo do */
    unsigned char misses;       /* how often a witness of this check has changed while the guard went on holding */
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
    GuardCheck *imaged;         /* borrowed: the check whose image decides it and the implied children, or NULL */
    Image *image;               /* owned: bytes for which this check and these children held, or NULL */
    bool implied;               /* the parent's image decides all checks of this node */
    unsigned char image_misses;
    /* What the memo knows; see guard_memo.c. */
    PyObject *seen;             /* borrowed from the container that holds it */
    PyTypeObject *seen_type;    /* borrowed; for comparison only */
    unsigned char state;        /* NodeState */
    unsigned char misses;       /* how often the value has changed while the guard went on holding */
    bool pinned;                /* some witness lies within the object */
    int early;                  /* of a constant: the first of its residuals among GuardMemo.early */
    struct GuardNode **operands; /* owned array of borrowed nodes: computed */
    Py_ssize_t n_operands;
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
    GuardMemo *memo;            /* owned, or NULL */
    unsigned long long n_builds, n_refreshes;
    int wait;                   /* evaluations that must hold before a memo is built again */
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

/* An evaluation under way. */
typedef struct {
    GuardProgram *program;
    const GuardView *view;
    PyObject **captures;        /* owned values, by GuardNode.capture */
} Descent;

/* Of guard_eval.c, for the memo. */
PyObject *tf_root_value(GuardProgram *, const GuardNode *, const GuardView *);     /* new reference, or NULL, error or not */
PyObject *tf_step_value(const GuardNode *, PyObject *value);                       /* as above */
PyObject *tf_path_value(GuardProgram *, const GuardNode *, const GuardView *);     /* as above: from the root on */
int tf_check_node(Descent *, GuardNode *, PyObject *value);                        /* the node and everything below it */
int tf_check_cross(Descent *, GuardCheck *);

/* Of guard_memo.c. */
typedef enum { MEMO_FAILS = 0, MEMO_HOLDS = 1, MEMO_STALE = 2, MEMO_ERROR = -1 } MemoAnswer;
MemoAnswer tf_memo_holds(Descent *);
void tf_memo_learn(Descent *);                                  /* after an evaluation that held; never sets an error */
void tf_memo_free(GuardProgram *);
size_t tf_memo_size(const GuardProgram *);                      /* bytes */
PyObject *tf_memo_describe(const GuardProgram *);               /* new dict */

/* Of dict_versions.c: whether every change of the dict moves its version from now on. May give the dict another table. */
bool tf_dict_version_is_reliable(PyObject *dict);

/* Of guard_image.c. */
ImageSpec *tf_image_spec(PyObject *given, PyObject *types, Py_ssize_t handle_offset, PyObject *where);  /* NULL with an error */
bool tf_image_implies(const ImageSpec *, PyObject *key);
Image *tf_image_take(const ImageSpec *, PyObject *value);       /* new reference, shared if equal; NULL without an error */
bool tf_image_matches(const Image *, PyObject *value);          /* never runs Python code */
void tf_image_retain(Image *);
void tf_image_release(Image *);

/* Of guard_trie.c. */
int tf_trie_add_check(GuardProgram *, PyObject *given, Py_ssize_t number);      /* 0, or -1 with GuardError set */
void tf_trie_link_images(GuardNode *list);                      /* once all checks are there */
int tf_trie_visit(GuardNode *list, visitproc, void *arg);
int tf_trie_visit_checks(GuardCheck *list, visitproc, void *arg);
void tf_trie_free(GuardNode *list);
void tf_trie_free_checks(GuardCheck *list);
size_t tf_trie_size(const GuardNode *list);                     /* bytes */
int tf_trie_add_vocabulary(PyObject *module);                   /* ROOTS, ACCESSORS, OPS: the names in the tables */

extern PyTypeObject GuardProgram_Type;
int *tf_program_bind(GuardProgram *, PyCodeObject *);           /* new array (PyMem), or NULL with ValueError set */
int tf_program_holds(GuardProgram *, const GuardView *);        /* 1, 0, -1 with a BaseException set */
int tf_program_first_failure(GuardProgram *, const GuardView *, Py_ssize_t *);  /* as above; 0 fills in the index */
void tf_program_promote(GuardNode **list, GuardNode *node);

int tf_clear_ordinary_error(void);                              /* 0: cleared; -1: not an Exception, still set */
int tf_check_test(const GuardCheck *, PyObject *value, PyObject *const *others);
void tf_check_free_argument(GuardCheck *);
size_t tf_check_size(const GuardCheck *);                        /* bytes that the check itself owns */

int tf_check_require(bool good, GuardCheck *, PyObject *where, const char *wanted);     /* 0, or -1 with GuardError set */

/* Of guard_native.c. */
bool tf_is_of_types(PyObject *value, PyObject *types); /* whether its type is exactly this one, or one of the tuple */
int tf_prepare_native_tensor(GuardCheck *, PyObject *where);
int tf_test_native_tensor(const GuardCheck *, PyObject *value, PyObject *const *others);
int tf_prepare_equal_items(GuardCheck *, PyObject *where);
int tf_test_equal_items(const GuardCheck *, PyObject *value, PyObject *const *others);
void tf_native_free(GuardCheck *);                              /* what its argument was prepared into */
size_t tf_native_size(const GuardCheck *);                      /* bytes of that */

/* Of guard_facts.c. */
int tf_prepare_type_lookup(GuardCheck *, PyObject *where);
int tf_test_type_lookup(const GuardCheck *, PyObject *value, PyObject *const *others);
int tf_prepare_function_code(GuardCheck *, PyObject *where);
int tf_test_function_code(const GuardCheck *, PyObject *value, PyObject *const *others);
int tf_prepare_unset(GuardCheck *, PyObject *where);
int tf_test_unset(const GuardCheck *, PyObject *value, PyObject *const *others);
PyObject *tf_descriptor_value(PyObject *descriptor, PyObject *owner);   /* `descriptor.__get__(owner)`: new reference or NULL */

/* What a weak reference refers to, or NULL when that is dead or about to be freed (nothing else refers to it: the interpreter puts off
 * freeing deeply nested objects); what is no reference stands for itself. Borrowed. */
static inline PyObject *
tf_referent(PyObject *object)
{
    if (!PyWeakref_CheckRefExact(object)) {
        return object;
    }
    PyObject *referent = ((PyWeakReference *)object)->wr_object;
    return referent == Py_None || Py_REFCNT(referent) <= 0 ? NULL : referent;
}

PyObject *tf_slot_descriptor(PyObject *slot);                   /* that a pair (reference to a class, name) means, borrowed, or NULL without an
                                                                 * error; of a descriptor itself */

static inline bool
tf_check_is_cross(const GuardCheck *check)
{
    return check->kind->others != PATHS_NONE;
}

int tf_same_value(PyObject *, PyObject *);                      /* same type and equal, strictly; 1, 0, -1 */
PyObject *tf_nth_key(PyObject *mapping, Py_ssize_t);            /* new reference, NULL with or without an error */
PyObject *tf_key_iterator(PyObject *mapping);                    /* over the keys of a dict in their order, past what its class says */

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
    PyObject *fast_path_may_retry;  /* borrowed from fast_path: asked whether the code runs when the callable has raised; or NULL */
    unsigned long long hits;
    bool runs_original;         /* the replacement is the code that it is cached on: the guard tells which calls need no question */
    PyObject *weakrefs;
} Entry;

typedef struct CodeCache {
    struct CodeCache *previous, *next;  /* all caches, for reset() */
    PyCodeObject *code;         /* borrowed: the cache dies with it */
    PyObject *entries;          /* owned tuple, replaced as a whole, so that a loop over it stays valid */
    bool skip;
    bool skip_below;            /* the hook is off in what the code calls, too */
    int stale_entries;          /* how many fresh entries did not hold for the calls they were made for */
    int resting;                /* so many calls run as they are, without a look at the entries */
    bool idle;                  /* nothing below the last call through a dispatcher was compiled or ran compiled */
} CodeCache;

extern PyTypeObject Entry_Type;
int tf_cache_init(void);
CodeCache *tf_cache_of(PyCodeObject *);                         /* NULL when there is none; never an error */
CodeCache *tf_cache_create(PyCodeObject *);                     /* the one there is, or a new one; NULL with an exception set */
/* Finds the entry whose guard holds: 1 and a new reference, 0, or -1 with an exception set. Runs with the hook off. */
int tf_cache_find(PyCodeObject *, GuardView *, Entry **);
bool tf_cache_rests(CodeCache *);                               /* whether this call runs without a look; counted */
int tf_cache_accepts(PyCodeObject *, Entry *);                   /* -1 with LayoutError set: it cannot run in its place */
int tf_cache_add(PyCodeObject *, Entry *);
int tf_cache_set_skip(PyCodeObject *, bool);
int tf_cache_set_skip_below(PyCodeObject *);
int tf_entry_holds(Entry *, GuardView *);
/* The values of a fast-path entry, borrowed from the slots: 1, or 0 when *args or **kwargs lack one (its guard is too weak). */
int tf_entry_fast_path_values(Entry *, PyObject *const *slots, PyObject **values);
extern unsigned long long tf_work_done;                         /* questions to handlers, and runs of replacement code, so far */
extern PyMethodDef tf_cache_methods[];
/* The arguments of a vectorcall. */
typedef struct {
    PyObject *const *args;
    Py_ssize_t n_args;
    PyObject *keyword_names;    /* NULL for none */
} GivenArguments;

/* Fills the argument slots of the function, whose code this is, with owned values; `bound_self` goes first, or is NULL. 1, 0 when they do
 * not fit, -1 with an exception set. */
int tf_bind_arguments(PyFunctionObject *function, PyObject *bound_self, PyCodeObject *code, const GivenArguments *given, PyObject **slots);
void tf_dispatchers_forget(PyObject *entry);                    /* of dispatcher.c: an entry that is no longer in its cache */

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
/* Whether another evaluator is active to which the handler leaves the calls of its functions: it has a method `expects_evaluator`, and
 * that gives a true object. */
bool tf_leaves_to_other_evaluator(PyObject *handler);

/* Turns the hook off for this thread and back on; cheap, the evaluator stays installed. */
PyObject *tf_thread_pause(ThreadHook *);
int tf_thread_unpause(ThreadHook *, PyObject *paused);
extern PyMethodDef tf_hook_methods[];
extern PyMethodDef tf_native_methods[]; /* of native_read.c */
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
extern PyObject *tf_run_cached, *tf_skip, *tf_skip_below, *tf_run_once, *tf_run_once_below; /* sentinels */
extern PyObject *tf_layout_error, *tf_guard_error, *tf_evaluator_error;     /* from errors.py */
extern PyObject *tf_stale_warning, *tf_evaluator_warning;
extern PyTypeObject Dispatcher_Type;

#endif
