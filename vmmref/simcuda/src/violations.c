/* Texts of what a program did wrong, kept until they are read and cleared. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { MOST_VIOLATIONS = 1000, LONGEST_TEXT = 400 };

static char *texts[MOST_VIOLATIONS];
static size_t text_count;

static void record(const char *format, va_list arguments)
{
    char text[LONGEST_TEXT];
    if (text_count == MOST_VIOLATIONS) return;
    vsnprintf(text, sizeof text, format, arguments);
    char *copy = strdup(text);
    if (copy) texts[text_count++] = copy;
}

void violation(const char *format, ...)
{
    if (!setting(VMMSIM_STRICT)) return;
    va_list arguments;
    va_start(arguments, format);
    record(format, arguments);
    va_end(arguments);
}

void violation_always(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    record(format, arguments);
    va_end(arguments);
}

CUresult misuse(CUresult result, const char *format, ...)
{
    if (!setting(VMMSIM_STRICT)) return result;
    va_list arguments;
    va_start(arguments, format);
    record(format, arguments);
    va_end(arguments);
    return result;
}

void violations_clear(void)
{
    while (text_count > 0) free(texts[--text_count]);
}

EXPORT size_t vmmsim_violation_count(void)
{
    if (forked()) return 0;
    pthread_mutex_lock(&sim.lock);
    size_t count = text_count;
    pthread_mutex_unlock(&sim.lock);
    return count;
}

EXPORT size_t vmmsim_violation(size_t index, char *text, size_t capacity)
{
    size_t length = 0;
    if (capacity > 0) text[0] = 0;
    if (forked()) return 0;
    pthread_mutex_lock(&sim.lock);
    if (index < text_count) {
        length = strlen(texts[index]);
        snprintf(text, capacity, "%s", texts[index]);
    }
    pthread_mutex_unlock(&sim.lock);
    return length;
}

EXPORT void vmmsim_clear_violations(void)
{
    if (forked()) return;
    pthread_mutex_lock(&sim.lock);
    violations_clear();
    pthread_mutex_unlock(&sim.lock);
}
