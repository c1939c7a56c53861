/* Images: the bytes behind a value's handle that decide a `native_tensor` check.
 *
 * The queries of such a check are functions of memory that a C library owns. Who makes the check may say which bytes they read:
 * ranges of the object at the address that the handle holds, and single fields behind pointers in that object. An image is a
 * copy of these bytes from a moment at which all queries held. While the bytes are equal the queries hold, and so does what the
 * spec calls implied (attributes, functions of the value). When they are not equal, the queries are asked.
 *
 *   value --handle_offset--> [P] --> object: ... start [ words ] stop ... start [ words ] stop ...
 *                                            `- offset [Q] --> ... inner [ 1 or 8 bytes ]      a NULL pointer reads as 0
 *
 * Equal images are one object, since most parameters of a model look alike: a comparison then touches the tensor's memory only.
 */
#include "guard_image.h"
#include <string.h>

#define N_BUCKETS 256
static Image *buckets[N_BUCKETS];

/* ---- the spec -------------------------------------------------------------------------------------------------------- */

static bool
small_number(PyObject *given, Py_ssize_t limit, uint16_t *number)
{
    Py_ssize_t value = PyLong_CheckExact(given) ? PyLong_AsSsize_t(given) : -1;
    PyErr_Clear();
    *number = (uint16_t)value;
    return value >= 0 && value <= limit;
}

/* One (offset, offset behind it, bytes, only_null, needed). */
static bool
fill_field(ImageField *field, PyObject *given)
{
    uint16_t size;
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != 5 || !PyBool_Check(PyTuple_GET_ITEM(given, 3))
        || (PyTuple_GET_ITEM(given, 4) != Py_None && !PyBool_Check(PyTuple_GET_ITEM(given, 4)))
        || !small_number(PyTuple_GET_ITEM(given, 0), TF_IMAGE_MAX_OFFSET, &field->pointer)
        || !small_number(PyTuple_GET_ITEM(given, 1), TF_IMAGE_MAX_OFFSET, &field->inner)
        || !small_number(PyTuple_GET_ITEM(given, 2), 8, &size) || size == 0) {
        return false;
    }
    if (field->pointer % 8 != 0 || field->inner % 8 + size > 8) {
        return false;
    }
    field->only_null = PyTuple_GET_ITEM(given, 3) == Py_True;
    PyObject *needed = PyTuple_GET_ITEM(given, 4);
    field->needed = needed == Py_None ? TF_ANY : needed == Py_True ? TF_SET : TF_ZERO;
    unsigned char bytes[8] = {0};
    memset(bytes + field->inner % 8, 0xff, size);
    memcpy(&field->mask, bytes, sizeof field->mask);
    field->inner = (uint16_t)(field->inner - field->inner % 8);
    return true;
}

/* One (start, stop). */
static bool
read_range(PyObject *given, uint16_t *start, uint16_t *stop)
{
    return PyTuple_Check(given) && PyTuple_GET_SIZE(given) == 2
           && small_number(PyTuple_GET_ITEM(given, 0), TF_IMAGE_MAX_OFFSET, start)
           && small_number(PyTuple_GET_ITEM(given, 1), TF_IMAGE_MAX_OFFSET, stop) && *start % 8 == 0 && *stop % 8 == 0
           && *start <= *stop;
}

static bool
fill_ranges(ImageSpec *spec, PyObject *ranges)
{
    uint16_t start, stop, first = TF_IMAGE_MAX_OFFSET, last = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ranges); i++) {
        if (!read_range(PyTuple_GET_ITEM(ranges, i), &start, &stop)) {
            return false;
        }
        first = start < first ? start : first;
        last = stop > last ? stop : last;
    }
    /* Whole vectors, the last of which ends the last range: nothing behind the object is read. */
    int bytes = TF_QUAD * 8;
    spec->n_words = (uint16_t)(first < last ? (last - first + bytes - 1) / bytes * TF_QUAD : 0);
    if (spec->n_words > TF_IMAGE_MAX_WORDS || spec->n_words * 8 > last) {
        return false;
    }
    spec->base = (uint16_t)(last - spec->n_words * 8);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ranges); i++) {
        (void)read_range(PyTuple_GET_ITEM(ranges, i), &start, &stop);
        for (; start < stop; start = (uint16_t)(start + 8)) {
            spec->masks[(start - spec->base) / 8] = UINT64_MAX;
        }
    }
    return true;
}

static bool
fill_spec(ImageSpec *spec, PyObject *given)
{
    bool good = PyTuple_Check(given) && PyTuple_GET_SIZE(given) == 3;
    for (int i = 0; i < 3 && good; i++) {
        good = PyTuple_Check(PyTuple_GET_ITEM(given, i));
    }
    PyObject *fields = good ? PyTuple_GET_ITEM(given, 1) : NULL;
    good = good && fill_ranges(spec, PyTuple_GET_ITEM(given, 0)) && PyTuple_GET_SIZE(fields) <= TF_IMAGE_MAX_FIELDS;
    for (Py_ssize_t i = 0; good && i < PyTuple_GET_SIZE(fields); i++) {
        good = fill_field(&spec->fields[spec->n_fields++], PyTuple_GET_ITEM(fields, i));
    }
    spec->implies = good ? PyTuple_GET_ITEM(given, 2) : NULL;
    return good;
}

ImageSpec *
tf_image_spec(PyObject *given, PyObject *types, Py_ssize_t handle_offset, PyObject *where)
{
    ImageSpec *spec = PyMem_Calloc(1, sizeof(ImageSpec));
    if (spec == NULL) {
        return (ImageSpec *)PyErr_NoMemory();
    }
    if (!PyType_Check(types) || !fill_spec(spec, given)) {
        PyMem_Free(spec);
        PyErr_Format(tf_guard_error, "%U: the image must be a NativeImage (ranges (start, stop) within %d bytes, up to %d fields "
                     "(offset, offset behind, 1 to 8 bytes of a word, bool, bool or None), tuple) of a check of one type, with offsets "
                     "up to %d and multiples of 8, not %R", where, 8 * TF_IMAGE_MAX_WORDS, TF_IMAGE_MAX_FIELDS,
                     TF_IMAGE_MAX_OFFSET, given);
        return NULL;
    }
    spec->type = types;
    spec->handle_offset = handle_offset;
    return spec;
}

bool
tf_image_implies(const ImageSpec *spec, PyObject *key)
{
    bool found = false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(spec->implies) && !found; i++) {
        PyObject *implied = PyTuple_GET_ITEM(spec->implies, i);
        found = implied == key
                || (PyUnicode_CheckExact(implied) && PyUnicode_CheckExact(key) && PyUnicode_Compare(implied, key) == 0);
    }
    return found;
}

/* ---- images ------------------------------------------------------------------------------------------------------------ */

TF_WIDE_VECTORS bool
tf_image_matches(const Image *image, PyObject *value)
{
    return tf_image_matches_inline(image, value);
}

static size_t
image_hash(const Image *image)
{
    size_t hash = 1469598103934665603u ^ (size_t)image->spec.type;
    for (int i = 0; i < image->spec.n_words; i++) {
        hash = (hash ^ (size_t)image->words[i]) * 1099511628211u;
    }
    return hash ^ (hash >> 29);
}

static bool
same_image(const Image *left, const Image *right)
{
    const ImageSpec *a = &left->spec, *b = &right->spec;
    size_t size = a->n_words * sizeof(uint64_t);
    bool same = left->hash == right->hash && a->type == b->type && tf_same_layout(a, b) && memcmp(a->masks, b->masks, size) == 0
                && memcmp(left->words, right->words, size) == 0;
    for (int i = 0; i < a->n_fields && same; i++) {
        same = left->fields[i] == right->fields[i];
    }
    return same;
}

/* Whether the fields are as they must be for an image to decide. */
static bool
says_enough(const ImageSpec *spec, const char *object)
{
    for (int i = 0; i < spec->n_fields; i++) {
        FieldNeed needed = spec->fields[i].needed;
        if (needed != TF_ANY && (tf_image_field(&spec->fields[i], object) != 0) != (needed == TF_SET)) {
            return false;
        }
    }
    return true;
}

Image *
tf_image_take(const ImageSpec *spec, PyObject *value)
{
    const char *object = (PyObject *)Py_TYPE(value) == spec->type ? tf_image_object(spec, value) : NULL;
    object = object != NULL && says_enough(spec, object) ? object : NULL;
    Image *image = object == NULL ? NULL : PyMem_Calloc(1, sizeof(Image));
    if (image == NULL) {
        return NULL;
    }
    image->spec = *spec;
    image->spec.implies = NULL;
    const uint64_t *words = (const uint64_t *)(object + spec->base);
    for (int i = 0; i < spec->n_words; i++) {
        image->words[i] = words[i] & spec->masks[i];
    }
    for (int i = 0; i < spec->n_fields; i++) {
        image->fields[i] = tf_image_field(&spec->fields[i], object);
    }
    image->hash = image_hash(image);
    Image **bucket = &buckets[image->hash % N_BUCKETS];
    for (Image *known = *bucket; known != NULL; known = known->next) {
        if (same_image(known, image)) {
            PyMem_Free(image);
            known->references++;
            return known;
        }
    }
    image->references = 1;
    image->next = *bucket;
    *bucket = image;
    return image;
}

void
tf_image_retain(Image *image)
{
    image->references++;
}

void
tf_image_release(Image *image)
{
    if (image == NULL || --image->references > 0) {
        return;
    }
    Image **link = &buckets[image->hash % N_BUCKETS];
    while (*link != image) {
        link = &(*link)->next;
    }
    *link = image->next;
    PyMem_Free(image);
}
