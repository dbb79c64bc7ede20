/* Answers requests from a SavedModel with TensorFlow's C++ loader, as TensorFlow Serving does.

   answer SAVED_MODEL REQUESTS ANSWERS

   REQUESTS holds, all numbers little-endian: int32 requests; for each int32 inputs, a tensor each,
   then int32 outputs, a place each. A place is int32 length, the name of an operation, and int32
   index. A tensor is a place (in REQUESTS alone), int32 type (TF_DataType), int32 rank, int64 sizes,
   and the numbers; a string is int64 length and bytes. ANSWERS gets the tensors of all requests, or
   for one that fails int32 -1, int32 length and the message. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

#define MOST 16 /* inputs or outputs, and axes of a tensor */

static FILE *requests, *answers;

static void stop(const char *message) {
  fprintf(stderr, "%s\n", message);
  exit(1);
}

static void get(void *to, size_t size) {
  if (size && fread(to, size, 1, requests) != 1) stop("the requests end early");
}

static int32_t get_int(void) {
  int32_t value;
  get(&value, sizeof value);
  return value;
}

static int64_t get_long(void) {
  int64_t value;
  get(&value, sizeof value);
  return value;
}

static void put(const void *from, size_t size) {
  if (size && fwrite(from, size, 1, answers) != 1) stop("the answers cannot be written");
}

static void put_int(int32_t value) { put(&value, sizeof value); }

static void put_long(int64_t value) { put(&value, sizeof value); }

static TF_Output get_place(TF_Graph *graph) {
  char name[1000] = "";
  int32_t length = get_int();
  if (length >= (int32_t)sizeof name) stop("a name is too long");
  get(name, length);
  TF_Output place = {TF_GraphOperationByName(graph, name), get_int()};
  if (!place.oper) stop(name);
  return place;
}

static TF_Tensor *get_tensor(void) {
  TF_DataType type = get_int();
  int32_t rank = get_int();
  int64_t sizes[MOST], count = 1;
  for (int n = 0; n < rank; n++) count *= sizes[n] = get_long();
  size_t width = type == TF_STRING ? sizeof(TF_TString) : TF_DataTypeSize(type);
  TF_Tensor *tensor = TF_AllocateTensor(type, sizes, rank, count * width);
  if (type != TF_STRING) {
    get(TF_TensorData(tensor), count * width);
    return tensor;
  }
  TF_TString *strings = TF_TensorData(tensor);
  for (int64_t n = 0; n < count; n++) {
    int64_t length = get_long();
    char *bytes = malloc(length + 1);
    get(bytes, length);
    TF_TString_Init(&strings[n]);
    TF_TString_Copy(&strings[n], bytes, length);
    free(bytes);
  }
  return tensor;
}

static void put_tensor(TF_Tensor *tensor) {
  TF_DataType type = TF_TensorType(tensor);
  int64_t count = 1;
  put_int(type);
  put_int(TF_NumDims(tensor));
  for (int n = 0; n < TF_NumDims(tensor); n++) {
    put_long(TF_Dim(tensor, n));
    count *= TF_Dim(tensor, n);
  }
  if (type != TF_STRING) {
    put(TF_TensorData(tensor), count * TF_DataTypeSize(type));
    return;
  }
  TF_TString *strings = TF_TensorData(tensor);
  for (int64_t n = 0; n < count; n++) {
    put_long(TF_TString_GetSize(&strings[n]));
    put(TF_TString_GetDataPointer(&strings[n]), TF_TString_GetSize(&strings[n]));
  }
}

int main(int count, char **arguments) {
  if (count != 4) stop("answer SAVED_MODEL REQUESTS ANSWERS");
  requests = fopen(arguments[2], "rb");
  answers = fopen(arguments[3], "wb");
  if (!requests || !answers) stop("a file cannot be opened");

  const char *tags[] = {"serve"};
  TF_Status *status = TF_NewStatus();
  TF_Graph *graph = TF_NewGraph();
  TF_SessionOptions *options = TF_NewSessionOptions();
  TF_Session *session = TF_LoadSessionFromSavedModel(options, NULL, arguments[1], tags, 1, graph,
                                                     NULL, status);
  if (TF_GetCode(status) != TF_OK) stop(TF_Message(status));

  for (int32_t left = get_int(); left > 0; left--) {
    TF_Output given[MOST], wanted[MOST];
    TF_Tensor *values[MOST], *results[MOST];
    int32_t inputs = get_int();
    for (int n = 0; n < inputs; n++) {
      given[n] = get_place(graph);
      values[n] = get_tensor();
    }
    int32_t outputs = get_int();
    for (int n = 0; n < outputs; n++) wanted[n] = get_place(graph);

    TF_SessionRun(session, NULL, given, values, inputs, wanted, results, outputs, NULL, 0, NULL,
                  status);
    for (int n = 0; n < inputs; n++) TF_DeleteTensor(values[n]);
    if (TF_GetCode(status) != TF_OK) {
      const char *message = TF_Message(status);
      put_int(-1);
      put_int(strlen(message));
      put(message, strlen(message));
      continue;
    }
    for (int n = 0; n < outputs; n++) {
      put_tensor(results[n]);
      TF_DeleteTensor(results[n]);
    }
  }
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  if (fclose(answers)) stop("the answers cannot be written");
  return 0;
}
