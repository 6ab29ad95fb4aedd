/* Run an exported model once, or several times by the clock:

       model WEIGHTS THREADS TIMES FILE:2x3x4 ...

   reads an input from each file, writes output0.bin, output1.bin ..., and prints the sizes of outputs. */

#define _POSIX_C_SOURCE 200809L

#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t bytes_of(const model_value *value, const model_tensor *tensor) {
    int64_t count = 1;
    for (int k = 0; k < value->rank; k++) count *= tensor->dims[k];
    return (count * value->bits + 7) / 8;
}

static int read_input(const model_value *value, model_tensor *tensor, const char *text) {
    const char *at = strrchr(text, ':');
    char path[4096];
    FILE *file;
    size_t size, count;
    if (at == NULL || (size_t)(at - text) >= sizeof path) return 1;
    memcpy(path, text, (size_t)(at - text));
    path[at - text] = 0;
    for (int k = 0; k < value->rank; k++) {
        char *end;
        tensor->dims[k] = strtoll(at + 1, &end, 10);
        at = end;
    }
    size = (size_t)bytes_of(value, tensor);
    tensor->data = malloc(size + 1);
    file = fopen(path, "rb");
    if (file == NULL || tensor->data == NULL) return 1;
    count = fread(tensor->data, 1, size, file);
    fclose(file);
    return count != size;
}

static void write_output(int number, const model_value *value, const model_tensor *tensor) {
    char path[64];
    FILE *file;
    snprintf(path, sizeof path, "output%d.bin", number);
    file = fopen(path, "wb");
    if (file != NULL) {
        fwrite(tensor->data, 1, (size_t)bytes_of(value, tensor), file);
        fclose(file);
    }
    printf("%s %s", value->name, value->dtype);
    for (int k = 0; k < value->rank; k++) printf(" %lld", (long long)tensor->dims[k]);
    printf("\n");
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int count, char **words) {
    model_tensor inputs[MODEL_INPUTS + 1] = {{0}}, outputs[MODEL_OUTPUTS + 1] = {{0}};
    double least = 1e30;
    int status = 0;
    model *m;
    if (count != 4 + MODEL_INPUTS) {
        fprintf(stderr, "usage: %s WEIGHTS THREADS TIMES FILE:2x3x4 ... (%d inputs)\n", words[0], MODEL_INPUTS);
        return 2;
    }
    m = model_open(words[1], atoi(words[2]));
    if (m == NULL) {
        fprintf(stderr, "%s cannot be read, or is not of this model\n", words[1]);
        return 2;
    }
    for (int k = 0; k < MODEL_INPUTS; k++) {
        if (read_input(&model_inputs[k], &inputs[k], words[4 + k])) {
            fprintf(stderr, "%s: no such input\n", words[4 + k]);
            return 2;
        }
    }
    for (int time = 0; time < atoi(words[3]) && status == 0; time++) {
        for (int k = 0; k < MODEL_OUTPUTS; k++) {
            free(outputs[k].data);
            outputs[k].data = NULL;
        }
        const double start = seconds_now();
        status = model_run(m, inputs, outputs);
        const double taken = seconds_now() - start;
        least = taken < least ? taken : least;
    }
    if (status) fprintf(stderr, "%s\n", model_message(m));
    for (int k = 0; k < MODEL_OUTPUTS && status == 0; k++) write_output(k, &model_outputs[k], &outputs[k]);
    if (status == 0 && atoi(words[3]) > 1) printf("%.6f seconds at best\n", least);
    for (int k = 0; k < MODEL_INPUTS; k++) free(inputs[k].data);
    for (int k = 0; k < MODEL_OUTPUTS; k++) free(outputs[k].data);
    model_close(m);
    return status ? 1 : 0;
}
