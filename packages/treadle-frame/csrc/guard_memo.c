/* The memo of a guard program: what held the last time and need not be checked again.
 *
 * A guard on a model of a thousand layers asks thousands of things that never change. When a program has held, its trie is walked
 * once more, and every word of memory that the answers depend on is noted with its contents: versions of dicts and types,
 * pointers to instance dicts, items of lists, contents of cells (guard_peek.c). These words are the witnesses. While all of them
 * are equal, all that was found through them holds, and an evaluation compares a flat array of words instead of walking the trie.
 *
 *     evaluation --- roots: fetched; equal to what was seen, or checked as ever ---------.
 *                    witnesses: compared in order --- a dict or type differs -> `follow`  |
 *                    images: bytes of tensors (guard_image.c) --- differ --> checked      |---> anything else: MEMO_STALE,
 *                    residuals: what no witness covers is done on every call             |     guard_eval.c evaluates all,
 *                    checks on several paths                                  -----------'     and the memo is built anew
 *
 * Why comparing is enough, and safe although nothing is kept alive:
 *
 *  - Witnesses are in the order in which the objects are reached. Memory of an object is read only after the witnesses that say
 *    who holds it: roots are held by the caller, what a dict of an unchanged version holds it has held all the time, a pointer in a
 *    live object points to a live object. No Python code runs between the first witness and the last image.
 *  - Addresses are reused. A dict's version is given to one state of one dict, a type's tag to one state of one type, so neither
 *    can be met again at an address by chance. What is held by a dict of an unchanged version, or by an immutable object that
 *    has itself not changed, has been alive all the time: it is the same object (NODE_SOLID). What a mutable word points to may be a
 *    new object at an old address (NODE_LOOSE): its type and contents are witnesses too, or a check that only one object can pass is
 *    (`is`, whose object the program holds, and `refers`, whose weak reference dies with the object).
 *  - When a dict's version has moved, every fact that was read from it is read again (`follow`): programs that count calls in
 *    an attribute, or fill caches, cost those reads and nothing more. An object that lost its proof of being the same makes the memo
 *    stale, unless a check anchors it. A value that has done this twice is fetched on every call from then on (`misses`).
 *  - Whatever may run Python code runs before the first witness, or after the last image on objects that are held by then, and then
 *    all is compared once more: such code may have changed it. It may also evaluate this program again: an evaluation replaces the
 *    memo only when it is the only one.
 */
#include "guard_image.h"
#include "guard_memo.h"

/* ---- following a dict that has changed ------------------------------------------------------------------------------- */

/* Whether the memoised checks of a node hold for a value, which may be another one than they were memoised for. */
static bool
check_again(const GuardNode *node, PyObject *value)
{
    bool holds = true;
    for (const GuardCheck *check = node->checks; check != NULL && holds; check = check->next) {
        if (!check->memoised) {
            continue;
        }
        switch (check->kind->reads) {
        case READS_ANCHOR:
        case READS_IDENTITY:
        case READS_TYPE:
        case READS_VALUE:
            holds = tf_check_test(check, value, NULL) == 1;
            break;
        case READS_LENGTH:
            holds = PyTuple_CheckExact(value) ? tf_check_test(check, value, NULL) == 1 : value == node->seen;
            break;
        default:
            holds = value == node->seen;    /* witnesses in the object itself say the rest */
        }
    }
    return holds;
}

/* The node's value after its dict has changed. False: whether the guard holds must be found out from scratch. */
static bool
follow_value(GuardNode *node, PyObject *value)
{
    if (value == node->seen) {
        if (tf_is_anchored(NULL, node, value, false)) {
            return true;
        }
        if (Py_TYPE(value) != node->seen_type) {
            return false;
        }
        return node->children == NULL ? check_again(node, value) : PyDict_CheckExact(value);
    }
    if (value == NULL || node->children != NULL || node->pinned || node->capture >= 0 || !check_again(node, value)) {
        return false;
    }
    node->seen = value;
    node->seen_type = Py_TYPE(value);
    return true;
}

static bool
follow_fact(const Fact *fact, PyObject *dict)
{
    PyObject *found;
    switch (fact->kind) {
    case FACT_ITEM:
    case FACT_PRESENT:
    case FACT_ABSENT:
        found = tf_is_plain_lookup(dict, fact->key) ? PyDict_GetItemWithError(dict, fact->key) : NULL;
        PyErr_Clear();
        if (fact->kind == FACT_ABSENT) {
            return found == NULL && tf_is_plain_lookup(dict, fact->key);
        }
        return fact->kind == FACT_PRESENT ? found != NULL : follow_value(fact->node, found);
    case FACT_NTH_KEY:
        found = tf_nth_key(dict, fact->node->index);
        PyErr_Clear();
        Py_XDECREF(found);
        return follow_value(fact->node, found);
    case FACT_CHECK:
        return tf_is_plain_lookup(dict, NULL) && tf_check_test(fact->check, dict, NULL) == 1;
    case FACT_OTHER:
        return false;
    }
    Py_UNREACHABLE();
}

/* Reads again what was read from a dict whose version has moved. */
static bool
follow_dict(GuardMemo *memo, int first_fact, PyObject *dict)
{
    for (int i = first_fact; i >= 0; i = tf_facts(memo)[i].next) {
        const Fact *fact = &tf_facts(memo)[i];
        if (!follow_fact(fact, dict)) {
            memo->blamed_node = fact->check == NULL ? fact->node : NULL;
            memo->blamed_check = fact->check;
            return false;
        }
    }
    return true;
}

/* Looks up again what was looked up in a type that has changed. What else follows from a type may have changed with it. */
static bool
follow_type(GuardMemo *memo, int first_fact, PyTypeObject *type)
{
    bool holds = true;
    for (int i = first_fact; i >= 0 && holds; i = tf_facts(memo)[i].next) {
        const GuardCheck *check = tf_facts(memo)[i].check;
        holds = check != NULL && check->kind->reads == READS_LOOKUP && tf_check_test(check, (PyObject *)type, NULL) == 1;
    }
    return holds && tf_type_version(type) != 0;
}

/* Whether what follows from a witness that has changed still holds; then the witness is what it is now. */
static bool
follow(GuardProgram *program, int number)
{
    GuardMemo *memo = program->memo;
    Witness *witness = &tf_witnesses(memo)[number];
    const WitnessInfo *info = (const WitnessInfo *)memo->infos.items + number;
    char *address = (char *)witness->address;
    bool holds = false;
    if (info->kind == WITNESS_DICT) {
        PyObject *dict = (PyObject *)(address - offsetof(PyDictObject, ma_version_tag));
        bool readable = tf_dict_version_is_reliable(dict);
        memo->blamed_witness = readable ? -1 : number;
        holds = readable && follow_dict(memo, info->facts, dict);
    }
    else {
        PyTypeObject *type = (PyTypeObject *)(address - offsetof(PyTypeObject, tp_version_tag));
        holds = info->kind == WITNESS_TYPE && follow_type(memo, info->facts, type);
        memo->blamed_witness = holds ? -1 : number;
    }
    if (holds) {
        witness->expected = *witness->address;
        program->n_refreshes++;
    }
    return holds;
}

/* ---- images of one layout ----------------------------------------------------------------------------------------- */

/* What the images of tensors look like: code made for it compares twice as many in the same time. */
#define TF_COMMON_QUADS 4
#define TF_COMMON_FIELDS 2

void
tf_memo_note_layout(GuardMemo *memo)
{
    const Imaged *images = memo->images.items;
    const ImageSpec *first = memo->images.n > 0 ? &images[0].image->spec : NULL;
    bool common = first != NULL && first->n_words == TF_COMMON_QUADS * TF_QUAD && first->n_fields == TF_COMMON_FIELDS;
    for (int i = 1; i < memo->images.n && common; i++) {
        common = tf_same_layout(first, &images[i].image->spec);
    }
    memo->layout = common ? first : NULL;
}

static void
replace_image(GuardMemo *memo, Imaged *imaged, Image *image)
{
    tf_image_retain(image);
    if (memo->layout != NULL && !tf_same_layout(memo->layout, &image->spec)) {
        memo->layout = NULL;
    }
    if (memo->layout == &imaged->image->spec) {
        memo->layout = &image->spec;    /* the other may be freed */
    }
    tf_image_release(imaged->image);
    imaged->image = image;
}

/* ---- evaluating ------------------------------------------------------------------------------------------------------ */

/* Whether the other roots are what they were. Runs no Python code, nor does anything up to `compare_images`. */
static MemoAnswer
compare_roots(Descent *descent)
{
    GuardProgram *program = descent->program;
    GuardMemo *memo = program->memo;
    const GuardView *view = descent->view;
    if ((memo->globals != NULL && memo->globals != view->globals) || (memo->builtins != NULL && memo->builtins != view->builtins)) {
        memo->blamed_dicts = true;
        return MEMO_STALE;
    }
    for (GuardNode *root = program->roots; root != NULL; root = root->next) {
        bool in_dict = root->kind == STEP_global || root->kind == STEP_builtin;
        if (root->state == NODE_VOLATILE || root->kind == STEP_const || in_dict) {
            continue;
        }
        PyObject *value = tf_root_value(program, root, view);
        bool same = value == root->seen;
        PyErr_Clear();
        Py_XDECREF(value);      /* an argument, a cell or its contents, the globals, a referent: others hold it */
        if (!same) {
            memo->blamed_node = root;
            return MEMO_STALE;
        }
    }
    return MEMO_HOLDS;
}

static MemoAnswer
compare_witnesses(GuardProgram *program)
{
    const Witness *witnesses = tf_witnesses(program->memo);
    int n = program->memo->witnesses.n;
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) {
        if (__builtin_expect(*witnesses[i].address != witnesses[i].expected, 0) && !follow(program, i)) {
            return MEMO_STALE;
        }
    }
    return MEMO_HOLDS;
}

/* What is done on every call: values held, since it may run Python code. */
typedef struct {
    Residual residual;
    PyObject *value;            /* owned: to check, or the parent's */
    int image;                  /* number of the image that did not match, or -1 */
} Pending;

static bool
add_pending(Array *pending, Residual residual, PyObject *value, int image)
{
    Pending *added = tf_append(pending, sizeof(Pending));
    if (added != NULL) {
        *added = (Pending){residual, Py_NewRef(value), image};
    }
    return added != NULL;
}

/* Adds what does not match to `pending`; false without memory. The direction changes from call to call: the memory of a large model
 * does not fit in the cache near the core, and what was read last is still there. */
#define AHEAD 8

/* `layout`: that of all images, or NULL where they have different ones. */
static inline __attribute__((always_inline)) bool
compare_in_order(GuardMemo *memo, Array *pending, const ImageSpec *layout, int n_quads, int n_fields)
{
    const Imaged *images = memo->images.items;
    int n = memo->images.n, step = memo->backwards ? -1 : 1;
    for (int left = n, i = step > 0 ? 0 : n - 1; left > 0; left--, i += step) {
        if (left > AHEAD) {
            const Imaged *ahead = images + i + AHEAD * step;
            tf_image_prefetch(layout != NULL ? layout : &ahead->image->spec, ahead->value);
        }
        const Image *image = images[i].image;
        bool matches = layout != NULL ? tf_image_matches_as(layout, n_quads, n_fields, image, images[i].value)
                                      : tf_image_matches_inline(image, images[i].value);
        if (__builtin_expect(!matches, 0) && !add_pending(pending, (Residual){images[i].node, NULL}, images[i].value, i)) {
            return false;
        }
    }
    return true;
}

TF_WIDE_VECTORS static bool
compare_images(GuardMemo *memo, Array *pending)
{
    memo->backwards = !memo->backwards;
    if (memo->layout == NULL) {
        return compare_in_order(memo, pending, NULL, 0, 0);
    }
    const ImageSpec layout = {.handle_offset = memo->layout->handle_offset, .base = memo->layout->base,
                              .fields = {memo->layout->fields[0], memo->layout->fields[1]}};
    return compare_in_order(memo, pending, &layout, TF_COMMON_QUADS, TF_COMMON_FIELDS);
}

static bool
add_residuals(const GuardMemo *memo, Array *pending)
{
    const Residual *residuals = memo->residuals.items;
    for (int i = 0; i < memo->residuals.n; i++) {
        const GuardNode *node = residuals[i].node;
        if (!add_pending(pending, residuals[i], residuals[i].check != NULL ? node->seen : node->parent->seen, -1)) {
            return false;
        }
    }
    return true;
}

static int
run_pending(Descent *descent, const Pending *pending)
{
    GuardNode *node = pending->residual.node;
    if (pending->residual.check != NULL) {
        return tf_check_test(pending->residual.check, pending->value, NULL);
    }
    if (pending->image < 0) {
        PyObject *value = tf_step_value(node, pending->value);
        int holds = value == NULL ? tf_clear_ordinary_error() : tf_check_node(descent, node, value);
        Py_XDECREF(value);
        return holds;
    }
    int holds = tf_check_node(descent, node, pending->value);
    Imaged *imaged = (Imaged *)descent->program->memo->images.items + pending->image;
    if (holds == 1 && node->image != NULL && node->image != imaged->image) {
        replace_image(descent->program->memo, imaged, node->image);
    }
    return holds;
}

static int
check_crosses(Descent *descent)
{
    int holds = 1;
    for (GuardCheck *check = descent->program->cross; check != NULL && holds == 1; check = check->next) {
        holds = check->memoised ? 1 : tf_check_cross(descent, check);
    }
    return holds;
}

static void
capture_known(Descent *descent)
{
    const GuardMemo *memo = descent->program->memo;
    GuardNode *const *captured = memo->captured.items;
    for (int i = 0; i < memo->captured.n && !memo->all_cross_fixed; i++) {
        Py_XSETREF(descent->captures[captured[i]->capture], Py_NewRef(captured[i]->seen));
    }
}

static void
free_pending(Array *pending)
{
    const Pending *items = pending->items;
    for (int i = 0; i < pending->n; i++) {
        Py_DECREF(items[i].value);
    }
    PyMem_Free(pending->items);
}

/* Everything after the witnesses. `*ran`: some of it may have run Python code. */
static MemoAnswer
check_rest(Descent *descent, bool *ran)
{
    GuardMemo *memo = descent->program->memo;
    Array pending = {NULL, 0, 0};
    int holds = compare_images(memo, &pending) && add_residuals(memo, &pending) ? 1 : 0;
    capture_known(descent);
    const Pending *items = pending.items;
    for (int i = 0; i < pending.n && holds == 1; i++) {
        holds = run_pending(descent, &items[i]);
    }
    *ran = pending.n > 0 || !memo->all_cross_fixed;
    free_pending(&pending);
    return holds == 1 && !memo->all_cross_fixed ? (MemoAnswer)check_crosses(descent) : (MemoAnswer)holds;
}

/* The checks of one constant that no witness covers. */
static int
check_constant(Descent *descent, const GuardNode *root)
{
    const GuardMemo *memo = descent->program->memo;
    const Residual *early = memo->early.items;
    int holds = 1;
    for (int i = root->early; i < memo->early.n && holds == 1; i++) {
        const GuardNode *owner = early[i].check != NULL ? early[i].node : early[i].node->parent;
        if (owner != root) {
            break;
        }
        Pending pending = {early[i], root->key, -1};
        holds = run_pending(descent, &pending);
    }
    return holds;
}

/* What needs no witness, and may run Python code: roots that the memo knows nothing about, and constants, in the order in which an
 * evaluation without a memo checks them. */
static MemoAnswer
check_first(Descent *descent)
{
    GuardProgram *program = descent->program;
    for (GuardNode *root = program->roots; root != NULL; root = root->next) {
        int holds = 1;
        if (root->state == NODE_VOLATILE) {
            PyObject *value = tf_root_value(program, root, descent->view);
            holds = value == NULL ? tf_clear_ordinary_error() : tf_check_node(descent, root, value);
            Py_XDECREF(value);
        }
        else if (root->kind == STEP_const && program->memo->early.n > 0) {
            holds = check_constant(descent, root);
        }
        if (holds <= 0) {
            if (program->running == 1) {
                tf_program_promote(&program->roots, root);
            }
            return (MemoAnswer)holds;
        }
    }
    return MEMO_HOLDS;
}

static MemoAnswer
compare_all(Descent *descent)
{
    MemoAnswer answer = compare_roots(descent);
    return answer == MEMO_HOLDS ? compare_witnesses(descent->program) : answer;
}

/* After checks that have run Python code: nothing that was compared before them has changed. */
static MemoAnswer
compare_again(Descent *descent)
{
    Array differ = {NULL, 0, 0};
    MemoAnswer answer = compare_all(descent);
    if (answer == MEMO_HOLDS && (!compare_images(descent->program->memo, &differ) || differ.n > 0)) {
        answer = MEMO_STALE;
    }
    free_pending(&differ);
    return answer;
}

MemoAnswer
tf_memo_holds(Descent *descent)
{
    GuardMemo *memo = descent->program->memo;
    if (!tf_is_plain_view(descent->view)) {
        return MEMO_STALE;
    }
    memo->blamed_node = NULL;
    memo->blamed_check = NULL;
    memo->blamed_witness = -1;
    memo->blamed_dicts = false;
    MemoAnswer answer = check_first(descent);
    answer = answer == MEMO_HOLDS ? compare_all(descent) : answer;
    bool ran = false;
    answer = answer == MEMO_HOLDS ? check_rest(descent, &ran) : answer;
    return answer == MEMO_HOLDS && ran ? compare_again(descent) : answer;
}

/* ---- for people ------------------------------------------------------------------------------------------------------ */

size_t
tf_memo_size(const GuardProgram *program)
{
    const GuardMemo *memo = program->memo;
    if (memo == NULL) {
        return 0;
    }
    return sizeof(GuardMemo) + (size_t)memo->witnesses.capacity * sizeof(Witness)
           + (size_t)memo->infos.capacity * sizeof(WitnessInfo) + (size_t)memo->facts.capacity * sizeof(Fact)
           + (size_t)memo->images.capacity * sizeof(Imaged) + (size_t)memo->residuals.capacity * sizeof(Residual)
           + (size_t)memo->early.capacity * sizeof(Residual) + (size_t)memo->captured.capacity * sizeof(GuardNode *);
}

PyObject *
tf_memo_describe(const GuardProgram *program)
{
    const GuardMemo *memo = program->memo;
    return Py_BuildValue("{sisisisKsKsn}", "witnesses", memo == NULL ? 0 : memo->witnesses.n, "images",
                         memo == NULL ? 0 : memo->images.n, "residuals", memo == NULL ? 0 : memo->residuals.n + memo->early.n, "builds",
                         program->n_builds, "refreshes", program->n_refreshes, "bytes", (Py_ssize_t)tf_memo_size(program));
}
