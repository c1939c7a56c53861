/* Building the memo of a guard program; guard_memo.c explains it.
 *
 * The trie is walked from the roots, without running Python code. What a value or a check depends on is told by guard_peek.c through
 * `tf_watch_word`, `tf_watch_type` and `tf_watch_dict`; each address becomes one witness, however many facts follow from it.
 */
#include "guard_memo.h"

/* ---- arrays ---------------------------------------------------------------------------------------------------------- */

void *
tf_append(Array *array, size_t size)
{
    if (array->n == array->capacity) {
        int capacity = array->capacity == 0 ? 16 : array->capacity * 2;
        void *items = PyMem_Realloc(array->items, (size_t)capacity * size);
        if (items == NULL) {
            return NULL;
        }
        array->items = items;
        array->capacity = capacity;
    }
    return (char *)array->items + (size_t)array->n++ * size;
}

static void
trim(Array *array, size_t size)
{
    void *items = array->n == 0 ? NULL : PyMem_Realloc(array->items, (size_t)array->n * size);
    if (items != NULL) {
        array->items = items;
        array->capacity = array->n;
    }
}

static void
free_memo(GuardMemo *memo)
{
    if (memo == NULL) {
        return;
    }
    for (int i = 0; i < memo->images.n; i++) {
        tf_image_release(((Imaged *)memo->images.items)[i].image);
    }
    PyMem_Free(memo->witnesses.items);
    PyMem_Free(memo->infos.items);
    PyMem_Free(memo->facts.items);
    PyMem_Free(memo->images.items);
    PyMem_Free(memo->residuals.items);
    PyMem_Free(memo->early.items);
    PyMem_Free(memo->captured.items);
    PyMem_Free(memo->index.items);
    PyMem_Free(memo);
}

void
tf_memo_free(GuardProgram *program)
{
    free_memo(program->memo);
    program->memo = NULL;
}

/* ---- witnesses ------------------------------------------------------------------------------------------------------- */

static inline size_t
hash_of_address(const void *address)
{
    return (size_t)((uint64_t)((uintptr_t)address >> 3) * 0x9E3779B97F4A7C15u >> 20);
}

/* Makes room in the index; false without memory. */
static bool
grow_index(GuardMemo *memo)
{
    Array *index = &memo->index;
    if (2 * (memo->witnesses.n + 1) <= index->capacity) {
        return true;
    }
    int capacity = index->capacity == 0 ? 64 : index->capacity * 2;
    int *slots = PyMem_Calloc((size_t)capacity, sizeof(int));
    if (slots == NULL) {
        return false;
    }
    PyMem_Free(index->items);
    *index = (Array){slots, 0, capacity};
    for (int i = 0; i < memo->witnesses.n; i++) {
        size_t at = hash_of_address(tf_witnesses(memo)[i].address);
        while (slots[at % (size_t)capacity] != 0) {
            at++;
        }
        slots[at % (size_t)capacity] = i + 1;
    }
    return true;
}

/* The number of the witness of this address, which is added if it is new; -1 without memory. */
static int
add_witness(GuardMemo *memo, const void *address, WitnessKind kind)
{
    if (!grow_index(memo)) {
        return -1;
    }
    int *slots = memo->index.items;
    size_t at = hash_of_address(address), capacity = (size_t)memo->index.capacity;
    for (; slots[at % capacity] != 0; at++) {
        int number = slots[at % capacity] - 1;
        if (tf_witnesses(memo)[number].address == address) {
            return number;
        }
    }
    Witness *witness = tf_append(&memo->witnesses, sizeof(Witness));
    WitnessInfo *info = witness == NULL ? NULL : tf_append(&memo->infos, sizeof(WitnessInfo));
    if (info == NULL) {
        memo->witnesses.n -= witness != NULL;
        return -1;
    }
    *witness = (Witness){address, *(const uint64_t *)address};
    *info = (WitnessInfo){kind, -1};
    slots[at % capacity] = memo->witnesses.n;
    return memo->witnesses.n - 1;
}

static bool
add_fact(Builder *builder, int witness, FactKind kind, PyObject *key)
{
    GuardMemo *memo = builder->memo;
    Fact *fact = witness < 0 ? NULL : tf_append(&memo->facts, sizeof(Fact));
    if (fact == NULL) {
        return false;
    }
    WitnessInfo *info = (WitnessInfo *)memo->infos.items + witness;
    *fact = (Fact){kind, info->facts, builder->node, builder->check, key};
    info->facts = memo->facts.n - 1;
    return true;
}

bool
tf_watch_word(Builder *builder, const void *address)
{
    return add_fact(builder, add_witness(builder->memo, address, WITNESS_WORD), FACT_OTHER, NULL);
}

bool
tf_watch_type(Builder *builder, PyTypeObject *type)
{
    /* The word holds the tag and what CPython itself notes about the type, which hardly ever changes. */
    return tf_type_version(type) != 0
           && add_fact(builder, add_witness(builder->memo, &type->tp_version_tag, WITNESS_TYPE), FACT_OTHER, NULL);
}

bool
tf_watch_dict(Builder *builder, PyObject *dict, FactKind kind, PyObject *key)
{
    if (!tf_dict_version_is_reliable(dict)) {
        return false;
    }
    return add_fact(builder, add_witness(builder->memo, &((PyDictObject *)dict)->ma_version_tag, WITNESS_DICT), kind, key);
}

/* ---- building -------------------------------------------------------------------------------------------------------- */

/* Constants of the program are there before anything is compared. What is called with them comes first: it may change what is compared. */
static bool
is_early(const GuardNode *node, const GuardCheck *check)
{
    const GuardNode *owner = check != NULL ? node : node->parent;
    return owner->kind == STEP_const && (check == NULL || check->function == NULL);
}

static bool
add_residual(GuardMemo *memo, GuardNode *node, GuardCheck *check)
{
    Residual *residual = tf_append(is_early(node, check) ? &memo->early : &memo->residuals, sizeof(Residual));
    if (residual != NULL) {
        *residual = (Residual){node, check};
    }
    return residual != NULL;
}

/* 1: the node's image covers it; 0: it does not; -1 without memory. */
static int
add_image(Builder *builder, GuardNode *node)
{
    if (node->image == NULL || !tf_image_matches(node->image, node->seen)) {
        return 0;
    }
    Imaged *imaged = tf_append(&builder->memo->images, sizeof(Imaged));
    if (imaged == NULL) {
        return -1;
    }
    if (node->state == NODE_LOOSE && !tf_watch_word(builder, &node->seen->ob_type)) {
        return -1;
    }
    tf_image_retain(node->image);
    *imaged = (Imaged){node->seen, node->image, node};
    node->pinned = true;
    return 1;
}

static bool build_list(Builder *, GuardNode *list, bool skip_implied);

static bool
build_checks(Builder *builder, GuardNode *node, bool imaged)
{
    for (GuardCheck *check = node->checks; check != NULL; check = check->next) {
        check->memoised = imaged && check == node->imaged;
        if (!check->memoised && check->misses < TF_MAX_MISSES) {
            builder->check = check;
            check->memoised = tf_peek_check(builder, node, check);
            builder->check = NULL;
        }
        if (!check->memoised && !add_residual(builder->memo, node, check)) {
            return false;
        }
    }
    return true;
}

/* The checks of a node whose value is known, and everything below it; false without memory. */
static bool
build_node(Builder *builder, GuardNode *node, PyObject *value, Link link)
{
    node->seen = value;
    node->seen_type = Py_TYPE(value);
    node->state = link == LINK_SOLID ? NODE_SOLID : NODE_LOOSE;
    node->pinned = false;
    builder->node = node;
    int imaged = node->imaged == NULL ? 0 : add_image(builder, node);
    if (imaged < 0 || !build_checks(builder, node, imaged == 1)) {
        return false;
    }
    if (node->capture >= 0) {
        GuardNode **captured = tf_append(&builder->memo->captured, sizeof(GuardNode *));
        if (captured == NULL) {
            return false;
        }
        *captured = node;
    }
    return build_list(builder, node->children, imaged == 1);
}

static bool
build_list(Builder *builder, GuardNode *list, bool skip_implied)
{
    for (GuardNode *node = list; node != NULL; node = node->next) {
        node->state = NODE_VOLATILE;
        if (skip_implied && node->implied) {
            continue;
        }
        PyObject *value;
        builder->node = node;
        Link link = node->misses < TF_MAX_MISSES ? tf_peek_step(builder, node, &value) : LINK_NONE;
        bool built = link == LINK_NONE ? add_residual(builder->memo, node, NULL) : build_node(builder, node, value, link);
        if (!built) {
            return false;
        }
    }
    return true;
}

/* Whether looking up names runs no Python code and gives what the mapping holds. */
static bool
is_plain_mapping(PyObject *mapping)
{
    return mapping == NULL || (PyDict_CheckExact(mapping) && DK_IS_UNICODE(((PyDictObject *)mapping)->ma_keys));
}

/* Whether roots are found without running Python code. */
bool
tf_is_plain_view(const GuardView *view)
{
    bool plain_locals = view->slots != NULL || is_plain_mapping(view->locals);
    bool plain_cells = view->closure == NULL || PyTuple_CheckExact(view->closure) || is_plain_mapping(view->closure);
    return plain_locals && plain_cells && (view->globals == NULL || PyDict_Check(view->globals))
           && (view->builtins == NULL || PyDict_Check(view->builtins));
}

/* A root found in a dict of the frame. */
static Link
peek_root_dict(Builder *builder, GuardNode *root, PyObject *dict, PyObject **known, PyObject **value)
{
    *value = dict == NULL || !tf_is_plain_lookup(dict, root->key) ? NULL : PyDict_GetItemWithError(dict, root->key);
    PyErr_Clear();
    if (*value == NULL || !tf_watch_dict(builder, dict, FACT_ITEM, root->key)) {
        return LINK_NONE;
    }
    *known = dict;
    return LINK_SOLID;
}

static Link
peek_root(Builder *builder, GuardNode *root, const GuardView *view, GuardProgram *program, PyObject **value)
{
    switch (root->kind) {
    case STEP_const:
        *value = root->key;
        return LINK_SOLID;
    case STEP_referent:
        *value = tf_referent(root->key);
        return *value != NULL && tf_watch_word(builder, &((PyWeakReference *)root->key)->wr_object) ? LINK_SOLID : LINK_NONE;
    case STEP_globals:
        *value = view->globals;
        return *value != NULL && PyDict_CheckExact(*value) ? LINK_LOOSE : LINK_NONE;
    case STEP_global:
        return peek_root_dict(builder, root, view->globals, &builder->memo->globals, value);
    case STEP_builtin:
        return peek_root_dict(builder, root, view->builtins, &builder->memo->builtins, value);
    case STEP_computed:     /* made anew on every call */
        return LINK_NONE;
    default:
        *value = tf_root_value(program, root, view);
        PyErr_Clear();
        if (*value == NULL) {
            return LINK_NONE;
        }
        Py_DECREF(*value);      /* an argument, or what a cell holds */
        if (tf_is_anchored(builder, root, *value, true)) {
            return LINK_SOLID;
        }
        return root->kind == STEP_closure_cell ? LINK_LOOSE : LINK_NONE;
    }
}

static bool
build_roots(Builder *builder, GuardProgram *program, const GuardView *view)
{
    for (GuardNode *root = program->roots; root != NULL; root = root->next) {
        PyObject *value;
        builder->node = root;
        root->state = NODE_VOLATILE;
        root->early = builder->memo->early.n;
        Link link = root->misses < TF_MAX_MISSES ? peek_root(builder, root, view, program, &value) : LINK_NONE;
        if (link != LINK_NONE && !build_node(builder, root, value, link)) {
            return false;
        }
    }
    return true;
}

static bool
is_fixed(const GuardCheck *check)
{
    bool fixed = check->kind->reads == READS_IDENTITY && check->node->state != NODE_VOLATILE;
    for (Py_ssize_t i = 0; i < check->n_others && fixed; i++) {
        fixed = check->others[i]->state != NODE_VOLATILE;
    }
    return fixed;
}

static GuardMemo *
build(GuardProgram *program, const GuardView *view)
{
    GuardMemo *memo = PyMem_Calloc(1, sizeof(GuardMemo));
    Builder builder = {memo, NULL, NULL};
    if (memo == NULL || !build_roots(&builder, program, view)) {
        free_memo(memo);
        return NULL;
    }
    memo->blamed_witness = -1;
    memo->all_cross_fixed = true;
    for (GuardCheck *check = program->cross; check != NULL; check = check->next) {
        check->memoised = is_fixed(check);
        memo->all_cross_fixed &= check->memoised;
    }
    PyMem_Free(memo->index.items);
    memo->index = (Array){NULL, 0, 0};
    trim(&memo->witnesses, sizeof(Witness));
    trim(&memo->infos, sizeof(WitnessInfo));
    trim(&memo->facts, sizeof(Fact));
    trim(&memo->images, sizeof(Imaged));
    tf_memo_note_layout(memo);
    trim(&memo->residuals, sizeof(Residual));
    trim(&memo->early, sizeof(Residual));
    return memo;
}

/* Counts against the values and checks that made the memo stale. */
static void
blame(GuardProgram *program)
{
    GuardMemo *memo = program->memo;
    if (memo->blamed_node != NULL) {
        memo->blamed_node->misses += memo->blamed_node->misses < TF_MAX_MISSES;
    }
    if (memo->blamed_check != NULL) {
        memo->blamed_check->misses += memo->blamed_check->misses < TF_MAX_MISSES;
    }
    int fact = memo->blamed_witness < 0 ? -1 : ((WitnessInfo *)memo->infos.items)[memo->blamed_witness].facts;
    for (; fact >= 0; fact = tf_facts(memo)[fact].next) {
        const Fact *found = &tf_facts(memo)[fact];
        unsigned char *misses = found->check != NULL ? &found->check->misses : &found->node->misses;
        *misses += *misses < TF_MAX_MISSES;
    }
    for (GuardNode *root = program->roots; root != NULL && memo->blamed_dicts; root = root->next) {
        if (root->kind == STEP_global || root->kind == STEP_builtin) {
            root->misses += root->misses < TF_MAX_MISSES;
        }
    }
}

void
tf_memo_learn(Descent *descent)
{
    GuardProgram *program = descent->program;
    if (program->running != 1 || !tf_is_plain_view(descent->view)) {
        return;
    }
    if (program->memo != NULL) {
        blame(program);
        tf_memo_free(program);
    }
    if (program->wait > 0) {
        program->wait--;
        return;
    }
    program->memo = build(program, descent->view);
    program->n_builds++;
    /* A memo that does not last is worth less than it costs: build it ever more rarely. */
    program->wait = program->n_builds < 4 ? 0 : program->n_builds < 14 ? 1 << (program->n_builds - 4) : 1024;
    if (program->memo != NULL && program->memo->witnesses.n == 0 && program->memo->images.n == 0) {
        tf_memo_free(program);
        program->wait = INT_MAX;
    }
}
