/* Images, for the loop of guard_memo.c that compares thousands of them; guard_image.c explains them. */
#ifndef TREADLE_GUARD_IMAGE_H
#define TREADLE_GUARD_IMAGE_H

#include "treadle_frame.h"

#define TF_IMAGE_MAX_FIELDS 4
#define TF_IMAGE_MAX_OFFSET 1024
#define TF_IMAGE_MAX_WORDS 32

typedef uint64_t TfQuad __attribute__((vector_size(32), aligned(8)));
#define TF_QUAD 4               /* words in it */

/* Functions that compare images are compiled for processors with vectors of this size, too, and the loader chooses. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define TF_WIDE_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define TF_WIDE_VECTORS
#endif

/* What a field must be for an image to be taken: of other values the bytes do not decide. */
typedef enum { TF_ANY, TF_SET, TF_ZERO } FieldNeed;

/* A field behind a pointer: bits of an aligned word. */
typedef struct {
    uint16_t pointer, inner;    /* offsets of the pointer in the object, of the word behind it */
    bool only_null;             /* only whether the field is 0 counts */
    FieldNeed needed;
    uint64_t mask;
} ImageField;

struct ImageSpec {
    PyObject *type;             /* borrowed from the check's argument, like `implies` */
    PyObject *implies;
    Py_ssize_t handle_offset;
    uint16_t base;              /* offset of the first word */
    uint16_t n_words, n_fields;
    ImageField fields[TF_IMAGE_MAX_FIELDS];
    uint64_t masks[TF_IMAGE_MAX_WORDS];     /* all bits of a word within the ranges, none between them */
};

struct Image {
    struct Image *next;         /* in its bucket */
    Py_ssize_t references;
    size_t hash;
    ImageSpec spec;             /* `type` is borrowed from the checks of all who hold the image; no `implies` */
    uint64_t fields[TF_IMAGE_MAX_FIELDS];
    uint64_t words[TF_IMAGE_MAX_WORDS];
};

/* The object whose address the handle holds, or NULL. */
static inline const char *
tf_image_object(const ImageSpec *spec, PyObject *value)
{
    return *(const char *const *)((const char *)value + spec->handle_offset);
}

static inline uint64_t
tf_image_field(const ImageField *field, const char *object)
{
    const char *inner = *(const char *const *)(object + field->pointer);
    uint64_t found = inner == NULL ? 0 : *(const uint64_t *)(inner + field->inner) & field->mask;
    return field->only_null ? found != 0 : found;
}

/* `layout` is the image's spec, or one of the same layout; the numbers of vectors and fields are its own. Written so that a caller who
 * knows them beforehand gets code without loops. */
static inline __attribute__((always_inline)) bool
tf_image_matches_as(const ImageSpec *layout, int n_quads, int n_fields, const Image *image, PyObject *value)
{
    if (__builtin_expect((PyObject *)Py_TYPE(value) != image->spec.type, 0)) {
        return false;
    }
    const char *object = tf_image_object(layout, value);
    if (__builtin_expect(object == NULL, 0)) {
        return false;
    }
    const TfQuad *words = (const TfQuad *)(object + layout->base);
    const TfQuad *expected = (const TfQuad *)image->words, *masks = (const TfQuad *)image->spec.masks;
    TfQuad unequal = {0};
#pragma GCC unroll 4
    for (int i = 0; i < n_quads; i++) {
        unequal |= (words[i] ^ expected[i]) & masks[i];
    }
    uint64_t differ = unequal[0] | unequal[1] | unequal[2] | unequal[3];
#pragma GCC unroll 2
    for (int i = 0; i < n_fields; i++) {
        differ |= tf_image_field(&layout->fields[i], object) ^ image->fields[i];
    }
    return differ == 0;
}

static inline bool
tf_image_matches_inline(const Image *image, PyObject *value)
{
    return tf_image_matches_as(&image->spec, image->spec.n_words / TF_QUAD, image->spec.n_fields, image, value);
}

/* Whether images of both are compared by the same code: all but the expected words, the masks and the type. */
static inline bool
tf_same_layout(const ImageSpec *a, const ImageSpec *b)
{
    bool same = a->handle_offset == b->handle_offset && a->base == b->base && a->n_words == b->n_words && a->n_fields == b->n_fields;
    for (int i = 0; i < a->n_fields && same; i++) {
        const ImageField *x = &a->fields[i], *y = &b->fields[i];
        same = x->pointer == y->pointer && x->inner == y->inner && x->mask == y->mask && x->only_null == y->only_null;
    }
    return same;
}

/* Brings the object closer. The value is alive; its type need not be known yet, only that it is as large as the spec's. */
static inline void
tf_image_prefetch(const ImageSpec *layout, PyObject *value)
{
    const char *object = tf_image_object(layout, value) + layout->base;
    __builtin_prefetch(object);
    __builtin_prefetch(object + 64);
    __builtin_prefetch(object + 128);
}

#endif
