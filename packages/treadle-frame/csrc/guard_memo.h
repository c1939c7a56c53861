/* What guard_memo.c, guard_build.c, guard_peek.c and guard_plain.c share. guard_memo.c explains the whole. */
#ifndef TREADLE_GUARD_MEMO_H
#define TREADLE_GUARD_MEMO_H

#include "treadle_frame.h"
#include <string.h>

typedef enum {
    NODE_VOLATILE = 0,          /* the value is fetched on every call, and everything below it is checked */
    NODE_LOOSE,                 /* while the witnesses are unchanged: alive, at the same address, perhaps another object */
    NODE_SOLID,                 /* while the witnesses are unchanged: the same object */
} NodeState;

/* A word of memory that has not changed. */
typedef struct {
    const uint64_t *address;
    uint64_t expected;
} Witness;

typedef enum { WITNESS_WORD, WITNESS_TYPE, WITNESS_DICT } WitnessKind;

/* What follows from a witness, for when it has changed; parallel to the witnesses. */
typedef struct {
    WitnessKind kind;
    int facts;                  /* first in a list through Fact.next, or -1 */
} WitnessInfo;

typedef enum {
    FACT_OTHER,                 /* something that only a new memo can follow */
    FACT_ITEM,                  /* node->seen is the dict's value of node->key */
    FACT_NTH_KEY,               /* node->seen is the dict's key of number node->index */
    FACT_PRESENT,               /* the dict has `key` */
    FACT_ABSENT,                /* the dict lacks `key` */
    FACT_CHECK,                 /* check holds for the dict itself */
} FactKind;

typedef struct {
    FactKind kind;
    int next;
    GuardNode *node;
    GuardCheck *check;          /* NULL when it is the node's value that depends on the witness */
    PyObject *key;              /* borrowed from the node or check */
} Fact;

typedef struct {
    PyObject *value;            /* as node->seen */
    Image *image;               /* owned */
    GuardNode *node;
} Imaged;

/* To be done on every call: a check on node->seen, or (check == NULL) fetching the node's value from its parent's. */
typedef struct {
    GuardNode *node;
    GuardCheck *check;
} Residual;

typedef struct {
    void *items;
    int n, capacity;
} Array;

struct GuardMemo {
    Array witnesses, infos, facts, images, residuals;
    Array early;                /* residuals that need no witness */
    Array captured;             /* nodes whose values checks on several paths need */
    Array index;                /* while it is built: open hash table, address -> number of the witness + 1 */
    PyObject *globals, *builtins;   /* borrowed, for identity: the dicts that global and builtin roots were found in, or NULL */
    GuardNode *blamed_node;     /* what made the last evaluation stale */
    GuardCheck *blamed_check;
    int blamed_witness;
    bool blamed_dicts;          /* the frame's globals or builtins are others */
    bool all_cross_fixed;
    bool backwards;             /* the direction of the next pass over the images */
    const ImageSpec *layout;    /* that all images have, if it is the common one, or NULL */
};

static inline Witness *
tf_witnesses(const GuardMemo *memo)
{
    return memo->witnesses.items;
}

static inline Fact *
tf_facts(const GuardMemo *memo)
{
    return memo->facts.items;
}

#define TF_MAX_MISSES 2         /* a value that has changed so often is fetched on every call */

void tf_memo_note_layout(GuardMemo *);                          /* once all images are there */
void *tf_append(Array *, size_t size);                          /* a new item, or NULL without memory */
bool tf_is_plain_view(const GuardView *);                       /* roots are found without running Python code */

/* Building: each gives false where the memory cannot be watched. */
typedef struct {
    GuardMemo *memo;
    GuardNode *node;            /* on whose behalf ... */
    GuardCheck *check;          /* ... witnesses are added */
} Builder;

bool tf_watch_word(Builder *, const void *address);
bool tf_watch_type(Builder *, PyTypeObject *);                  /* its attributes and those of its bases */
bool tf_watch_dict(Builder *, PyObject *dict, FactKind, PyObject *key);

typedef enum { LINK_NONE, LINK_LOOSE, LINK_SOLID } Link;

/* The value that the node's accessor gives for its parent's value, borrowed, with witnesses; LINK_NONE if that cannot be known
 * without running Python code or cannot be watched. */
Link tf_peek_step(Builder *, GuardNode *node, PyObject **value);
/* Whether the check holds for node->seen as long as witnesses do; false also when it does not hold. */
bool tf_peek_check(Builder *, GuardNode *node, GuardCheck *check);
/* Whether some check of the node passes for one object only, and passes for this one. `watch`: adds a witness of that. */
bool tf_is_anchored(Builder *, GuardNode *node, PyObject *value, bool watch);
/* Whether lookups in the dict of this key run no Python code and depend on the dict alone. */
bool tf_is_plain_lookup(PyObject *dict, PyObject *key);
bool tf_is_plain_key(PyObject *key);                            /* its `==` and hash are C code */
PyObject *tf_plain_item(PyObject *dict, PyObject *key);         /* borrowed or NULL; only after tf_is_plain_lookup */
bool tf_can_change_type(PyObject *value);                       /* `value.__class__ = T` may be possible */
bool tf_watch_type_of(Builder *, GuardNode *node, PyObject *value);     /* the value's type is what it is */

#endif
