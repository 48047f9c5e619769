/* A server that speaks a little S3 and GCS and costs next to nothing, so that a benchmark measures the client.

   Bodies of more than SMALL bytes are dropped in the kernel (MSG_TRUNC), or after decryption; of such an object only the size, the
   metadata and the checksum that was sent are known, so checksums of large bodies are an echo. Small bodies are kept, also those in
   chunks; their CRC32C is computed and compared, and conditions are kept, so a client that tries what the server honours learns
   the truth. GET of pattern/N is an object of N bytes, sent by sendfile. Signatures are not checked. A thread a connection.

   GET /_sink/bytes says how many bytes of bodies were received and sent so far: a client that says it is done and moved nothing is
   found out. POST /_sink/forget drops all objects.

   cc -O2 -pthread sink.c -o sink; ./sink PORT (0: any). With -DTLS -lssl -lcrypto: ./sink PORT CERTIFICATE KEY also listens for TLS.
   It prints its ports, and ends when stdin does. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef TLS
#include <openssl/ssl.h>
#else
typedef void SSL;
#endif

#define HEAD (64 << 10)
#define SMALL (64 << 10)
#define PATTERN (8 << 20)
#define BUCKETS (1 << 17)
#define MIN(a, b) ((a) < (b) ? (a) : (b))

struct object { /* an object, or an upload in parts: its name is "?" and its id */
    struct object *next;
    char *key, *metadata, *json, crc[16]; /* metadata: as headers, of S3; json: of GCS */
    uint8_t *body; /* of small ones */
    uint64_t size, generation;
    uint32_t small_crc;
    int has_crc;
};

static struct object *table[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t crc_table[8][256];
static uint8_t *pattern;
static int pattern_fd;
static uint64_t n_ids, n_received, n_sent;

struct peer {
    int s;
    SSL *tls; /* NULL: plain */
};

/* As recv() does. No `data`: what comes is dropped. */
static ssize_t pull(struct peer *peer, void *data, size_t room) {
#ifdef TLS
    static __thread uint8_t dropped[64 << 10];
    if (peer->tls) return SSL_read(peer->tls, data ? data : dropped, MIN(room, sizeof dropped));
#endif
    return recv(peer->s, data, MIN(room, (size_t)16 << 20), data ? 0 : MSG_TRUNC);
}

static ssize_t push(struct peer *peer, const void *data, size_t n, int flags) {
#ifdef TLS
    if (peer->tls) return SSL_write(peer->tls, data, MIN(n, (size_t)1 << 20));
#endif
    return send(peer->s, data, n, flags | MSG_NOSIGNAL);
}

/* CRC32C, eight bytes a step ("Slicing-by-8", Kounavis and Berry). */
static uint32_t crc32c(uint32_t crc, const uint8_t *data, uint64_t n) {
    crc = ~crc;
    for (; n >= 8; n -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= crc;
        crc = 0;
        for (int i = 0; i < 8; i++) crc ^= crc_table[7 - i][word >> (8 * i) & 255];
    }
    while (n--) crc = crc >> 8 ^ crc_table[0][(crc ^ *data++) & 255];
    return ~crc;
}

static void encode(uint32_t crc, char *text) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint64_t bits = (uint64_t)crc << 16;
    for (int i = 0; i < 6; i++) text[i] = digits[bits >> (42 - 6 * i) & 63];
    strcpy(text + 6, "==");
}

static struct object **place(const char *key) {
    uint32_t hash = 2166136261u;
    for (const char *c = key; *c; c++) hash = (hash ^ (uint8_t)*c) * 16777619u;
    struct object **at = &table[hash % BUCKETS];
    while (*at && strcmp((*at)->key, key)) at = &(*at)->next;
    return at;
}

static void forget(struct object **at) {
    struct object *gone = *at;
    *at = gone->next;
    free(gone->key), free(gone->metadata), free(gone->json), free(gone->body), free(gone);
}

/* Under the lock: an object of this name, a new one in the place of what was there. */
static struct object *put(const char *key) {
    struct object **at = place(key), *made = calloc(1, sizeof *made);
    if (*at) forget(at), at = place(key);
    made->key = strdup(key), made->metadata = strdup(""), made->generation = ++n_ids;
    return *at = made;
}

static char *field(const char *head, const char *name, char *value, size_t room) {
    size_t n = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n"))
        if (!strncasecmp(line + 2, name, n) && line[2 + n] == ':') {
            const char *from = line + 3 + n, *to = strstr(from, "\r\n");
            while (*from == ' ') from++;
            snprintf(value, room, "%.*s", (int)(to - from), from);
            return value;
        }
    return NULL;
}

static char *metadata_of(const char *head) {
    char *found = calloc(1, strlen(head) + 1);
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n"))
        if (!strncasecmp(line + 2, "x-amz-meta-", 11)) strncat(found, line + 2, strstr(line + 2, "\r\n") + 2 - (line + 2));
    return found;
}

static int say(struct peer *peer, const void *data, size_t n, int flags) {
    for (const char *at = data; n;) {
        ssize_t sent = push(peer, at, n, flags);
        if (sent <= 0) return -1;
        at += sent, n -= sent;
    }
    return 0;
}

static int answer(struct peer *peer, const char *status, const char *headers, const char *body) {
    char text[HEAD];
    int n = snprintf(text, sizeof text, "HTTP/1.1 %s\r\n%sContent-Length: %zu\r\n\r\n%s", status, headers, strlen(body), body);
    return say(peer, text, MIN((size_t)n, sizeof text - 1), 0);
}

static int refuse(struct peer *peer, const char *status, const char *code) {
    char body[256];
    snprintf(body, sizeof body, "<Error><Code>%s</Code><Message>says the sink</Message></Error>", code);
    return answer(peer, status, "", body);
}

static int describe(struct peer *peer, struct object *found, const char *head, int with_body) {
    char headers[HEAD], range[64], *status = "200 OK";
    uint64_t start = 0, end = found->size;
    int n = 0;
    if (with_body && field(head, "Range", range, sizeof range) && sscanf(range, "bytes=%lu-%lu", &start, &end) >= 1) {
        end = strchr(range, '-')[1] ? end + 1 : found->size;
        if (end > found->size) end = found->size;
        if (start >= end) return refuse(peer, "416 Range Not Satisfiable", "InvalidRange");
        status = "206 Partial Content";
        n = sprintf(headers, "Content-Range: bytes %lu-%lu/%lu\r\n", start, end - 1, found->size);
    }
    if (found->has_crc && (!n || end - start == found->size)) /* a range has no sum */
        n += sprintf(headers + n, "x-amz-checksum-crc32c: %s\r\nx-amz-checksum-type: FULL_OBJECT\r\n", found->crc);
    if (found->has_crc) n += sprintf(headers + n, "x-goog-hash: crc32c=%s\r\n", found->crc);
    n += sprintf(headers + n, "x-goog-generation: %lu\r\nx-goog-stored-content-length: %lu\r\n", found->generation, found->size);
    char text[HEAD];
    n = snprintf(text, sizeof text, "HTTP/1.1 %s\r\nETag: \"sink%lu\"\r\nLast-Modified: Sun, 22 Nov 2026 00:00:00 GMT\r\nAccept-Ranges: bytes\r\n"
                 "Content-Type: application/octet-stream\r\n%.*s%sContent-Length: %lu\r\n\r\n", status, found->size, n,
                 headers, found->metadata, end - start);
    if (say(peer, text, n, with_body && end > start ? MSG_MORE : 0)) return -1;
    if (!with_body) return 0;
    if (found->body) __atomic_add_fetch(&n_sent, end - start, __ATOMIC_RELAXED);
    if (found->body) return say(peer, found->body + start, end - start, 0);
    while (start < end) {
        off_t at = start % PATTERN;
        size_t n_next = MIN(end - start, (uint64_t)(PATTERN - at));
        ssize_t sent = peer->tls ? push(peer, pattern + at, n_next, 0) : sendfile(peer->s, pattern_fd, &at, n_next);
        if (sent <= 0) return -1;
        start += sent, __atomic_add_fetch(&n_sent, sent, __ATOMIC_RELAXED);
    }
    return 0;
}

/* An object of pattern/N: made when it is asked for. Under the lock. */
static struct object *find(const char *key) {
    struct object **at = place(key);
    const char *name = strstr(key, "/pattern/");
    if (*at || !name) return *at;
    struct object *made = put(key);
    made->size = strtoull(name + 9, NULL, 10);
    uint32_t crc = 0;
    for (uint64_t done = 0; done < made->size; done += PATTERN) crc = crc32c(crc, pattern, MIN(made->size - done, (uint64_t)PATTERN));
    encode(crc, made->crc), made->has_crc = 1;
    return made;
}

/* Take a body; small ones into `kept`. -1: the client hung up. */
static int take(struct peer *peer, uint64_t size, const char *begun, size_t n_begun, uint8_t *kept) {
    uint64_t done = MIN(n_begun, size);
    if (size <= SMALL) memcpy(kept, begun, done);
    while (done < size) {
        int drops = size > SMALL;
        ssize_t n = pull(peer, drops ? NULL : kept + done, size - done);
        if (n <= 0) return -1;
        done += n;
    }
    __atomic_add_fetch(&n_received, size, __ATOMIC_RELAXED);
    return 0;
}

struct input {
    struct peer *peer;
    const char *at, *end;
    char more[4096];
};

static int next_byte(struct input *in) {
    if (in->at == in->end) {
        ssize_t n = pull(in->peer, in->more, sizeof in->more);
        if (n <= 0) return -1;
        in->at = in->more, in->end = in->more + n;
    }
    return (uint8_t)*in->at++;
}

/* Take a body in HTTP's chunks, the first SMALL bytes of it into `kept`; its size, or -1. */
static int64_t take_chunks(struct peer *peer, const char *begun, size_t n_begun, uint8_t *kept) {
    struct input in = {.peer = peer, .at = begun, .end = begun + n_begun};
    for (uint64_t size = 0;;) {
        char line[64];
        size_t n = 0;
        for (int c; (c = next_byte(&in)) != '\n'; n += n < sizeof line - 1)
            if (c < 0) return -1;
            else line[n] = c;
        line[n] = 0;
        uint64_t chunk = strtoull(line, NULL, 16), left = chunk;
        while (left) {
            uint64_t there = MIN(left, (uint64_t)(in.end - in.at)), room = size < SMALL ? SMALL - size : 0;
            ssize_t got = there ? (ssize_t)there : pull(peer, room ? kept + size : NULL, room ? MIN(left, room) : left);
            if (got <= 0) return -1;
            if (there) memcpy(kept + size, in.at, MIN(there, room)), in.at += there;
            left -= got, size += got;
        }
        if (next_byte(&in) < 0 || next_byte(&in) < 0) return -1;
        if (!chunk) return __atomic_add_fetch(&n_received, size, __ATOMIC_RELAXED), (int64_t)size;
    }
}

/* Take the frames of aws-chunked off a small body, in place; `trailer` is what follows the last. Its size, or -1. */
static int64_t unframe(uint8_t *kept, uint64_t size, const char **trailer) {
    uint64_t from = 0, to = 0;
    kept[size] = 0;
    for (;;) {
        char *end, *line_end = strstr((char *)kept + from, "\r\n");
        uint64_t n = strtoull((char *)kept + from, &end, 16);
        if (!line_end || end == (char *)kept + from) return -1;
        from = (uint8_t *)line_end - kept;
        *trailer = line_end;
        if (!n) return to;
        if (from + 2 + n + 2 > size) return -1;
        memmove(kept + to, kept + from + 2, n);
        to += n, from += 2 + n + 2;
    }
}

/* PUT of an object or of a part, with its body taken; `body` is NULL where it was dropped. */
static int store(struct peer *peer, const char *head, const char *key, const char *id, const uint8_t *body, uint64_t size, const char *trailer) {
    char given[64] = "", condition[8], real[16], headers[256];
    int has_crc = field(head, "x-amz-checksum-crc32c", given, sizeof given) || field(trailer, "x-amz-checksum-crc32c", given, sizeof given);
    uint32_t crc = body ? crc32c(0, body, size) : 0;
    encode(crc, real);
    if (has_crc && body && strcmp(given, real)) return refuse(peer, "400 Bad Request", "BadDigest");
    pthread_mutex_lock(&lock);
    struct object *at = *place(id ? id : key);
    int is_refused = id ? !at : at && field(head, "If-None-Match", condition, sizeof condition);
    if (!is_refused) {
        if (!id) {
            at = put(key);
            free(at->metadata), at->metadata = metadata_of(head);
            if (body) at->body = memcpy(malloc(size + 1), body, size);
            at->has_crc = has_crc, strcpy(at->crc, given);
        } else {
            at->small_crc = crc;
            free(at->body), at->body = body && !at->size ? memcpy(malloc(size + 1), body, size) : NULL; /* the only part */
        }
        at->size += size;
    }
    uint64_t number = ++n_ids;
    pthread_mutex_unlock(&lock);
    if (is_refused) return id ? refuse(peer, "404 Not Found", "NoSuchUpload") : refuse(peer, "412 Precondition Failed", "PreconditionFailed");
    int n = sprintf(headers, "ETag: \"sink%lu\"\r\n", number);
    if (has_crc) sprintf(headers + n, "x-amz-checksum-crc32c: %s\r\n", given);
    return answer(peer, "200 OK", headers, "");
}

static int begin(struct peer *peer, const char *head) {
    char id[32], body[320], value[32], *headers = "";
    pthread_mutex_lock(&lock);
    sprintf(id, "?%lu", ++n_ids);
    struct object *made = put(id);
    free(made->metadata), made->metadata = metadata_of(head);
    if (field(head, "x-amz-checksum-type", value, sizeof value) && !strcmp(value, "FULL_OBJECT"))
        headers = "x-amz-checksum-algorithm: CRC32C\r\nx-amz-checksum-type: FULL_OBJECT\r\n";
    pthread_mutex_unlock(&lock);
    sprintf(body, "<InitiateMultipartUploadResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id + 1);
    return answer(peer, "200 OK", headers, body);
}

static int complete(struct peer *peer, const char *head, const char *key, const char *id) {
    char given[64] = "", real[16], condition[8], body[320];
    const char *status = NULL, *code = NULL;
    pthread_mutex_lock(&lock);
    struct object *upload = *place(id);
    int has_crc = field(head, "x-amz-checksum-crc32c", given, sizeof given) != NULL;
    if (upload) encode(upload->small_crc, real);
    if (!upload)
        status = "404 Not Found", code = "NoSuchUpload";
    else if (*place(key) && field(head, "If-None-Match", condition, sizeof condition))
        status = "412 Precondition Failed", code = "PreconditionFailed";
    else if (has_crc && upload->size <= SMALL && strcmp(given, real)) /* right for one part, as a trial has */
        status = "400 Bad Request", code = "BadDigest";
    else {
        struct object *made = put(key);
        made->size = upload->size, made->has_crc = has_crc, strcpy(made->crc, given);
        free(made->metadata), made->metadata = strdup(upload->metadata);
        if (upload->size <= SMALL) made->body = upload->body, upload->body = NULL; /* of one part */
        forget(place(id));
    }
    int n = sprintf(body, "<CompleteMultipartUploadResult><ETag>\"sink%lu-1\"</ETag>", ++n_ids);
    if (has_crc) n += sprintf(body + n, "<ChecksumCRC32C>%s</ChecksumCRC32C><ChecksumType>FULL_OBJECT</ChecksumType>", given);
    strcpy(body + n, "</CompleteMultipartUploadResult>");
    pthread_mutex_unlock(&lock);
    return status ? refuse(peer, status, code) : answer(peer, "200 OK", "", body);
}

#include "sink_gcs.h"

static int serve_one(struct peer *peer, char *head, const char *begun, size_t n_begun, uint8_t *kept) {
    char method[8], target[4096], text[64], id[40] = "?";
    if (sscanf(head, "%7s %4095s", method, target) != 2) return -1;
    char *query = strchr(target, '?'), *upload = query ? strstr(query, "uploadId=") : NULL;
    if (upload) snprintf(id, sizeof id, "?%lu", strtoul(upload + 9, NULL, 10));
    if (query) *query++ = 0;
    if (strncmp(target, "/storage/", 9) && strncmp(target, "/upload/", 8) && strncmp(target, "/download/", 10)) unescape(target, '+');
    uint64_t size = field(head, "Content-Length", text, sizeof text) ? strtoull(text, NULL, 10) : 0;
    int64_t in_chunks = field(head, "Transfer-Encoding", text, sizeof text) ? 0 : -1;
    if ((size || !in_chunks) && !n_begun && field(head, "Expect", text, sizeof text) && say(peer, "HTTP/1.1 100 Continue\r\n\r\n", 25, 0)) return -1;
    if (in_chunks < 0 && (!strncmp(target, "/storage/v1/", 12) || !strncmp(target, "/upload/storage/", 16) || !strncmp(target, "/download/storage/", 18)))
        return serve_gcs(peer, method, target, query, head, size, begun, n_begun, kept);
    if (!in_chunks && (in_chunks = take_chunks(peer, begun, n_begun, kept)) < 0) return -1;
    if (in_chunks < 0 && take(peer, size, begun, n_begun, kept)) return -1;
    if (in_chunks >= 0) size = in_chunks;
    int is_kept = size <= SMALL;
    const char *trailer = "";
    if (field(head, "x-amz-decoded-content-length", text, sizeof text)) {
        if (is_kept && unframe(kept, size, &trailer) != strtoll(text, NULL, 10)) return refuse(peer, "400 Bad Request", "IncompleteBody");
        size = strtoull(text, NULL, 10);
    }
    if (!strcmp(method, "PUT")) {
        if (field(head, "x-amz-copy-source", text, sizeof text)) return refuse(peer, "501 Not Implemented", "NotImplemented");
        return store(peer, head, target, upload ? id : NULL, is_kept ? kept : NULL, size, trailer);
    }
    if (!strcmp(target, "/_sink/bytes")) {
        char told[64];
        sprintf(told, "%lu %lu", __atomic_load_n(&n_received, __ATOMIC_RELAXED), __atomic_load_n(&n_sent, __ATOMIC_RELAXED));
        return answer(peer, "200 OK", "", told);
    }
    if (!strcmp(target, "/_sink/forget")) {
        pthread_mutex_lock(&lock);
        for (size_t i = 0; i < BUCKETS; i++)
            for (struct object **at = &table[i]; *at;)
                if (strstr((*at)->key, "/pattern/")) at = &(*at)->next;
                else forget(at);
        pthread_mutex_unlock(&lock);
        return answer(peer, "200 OK", "", "");
    }
    if (!strcmp(method, "POST")) {
        if (query && strstr(query, "delete")) return refuse(peer, "501 Not Implemented", "NotImplemented");
        return upload ? complete(peer, head, target, id) : begin(peer, head);
    }
    if (!strcmp(method, "GET") && query && !strstr(query, "versionId") && !strstr(query, "x-id=GetObject"))
        return answer(peer, "200 OK", "Content-Type: application/xml\r\n", "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>");
    pthread_mutex_lock(&lock);
    struct object **at = place(upload ? id : target), *found = NULL, copy;
    if (!strcmp(method, "DELETE")) {
        if (*at) forget(at);
    } else if ((found = find(target))) {
        copy = *found, copy.metadata = strdup(found->metadata);
        if (found->body) copy.body = memcpy(malloc(found->size + 1), found->body, found->size);
    }
    pthread_mutex_unlock(&lock);
    if (!strcmp(method, "DELETE")) return say(peer, "HTTP/1.1 204 No Content\r\n\r\n", 27, 0);
    if (!found) return !strcmp(method, "HEAD") ? answer(peer, "404 Not Found", "", "") : refuse(peer, "404 Not Found", "NoSuchKey");
    int result = describe(peer, &copy, head, !strcmp(method, "GET"));
    free(copy.metadata), free(copy.body);
    return result;
}

static void *serve(void *given) {
    struct peer peer = *(struct peer *)given;
    int one = 1;
    size_t n = 0;
    char *input = malloc(HEAD + 1);
    uint8_t *kept = malloc(SMALL + 1);
    free(given);
    setsockopt(peer.s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
#ifdef TLS
    if (peer.tls && SSL_accept(peer.tls) <= 0) n = HEAD;
#endif
    for (;;) {
        ssize_t got = n < HEAD ? pull(&peer, input + n, HEAD - n) : 0;
        if (got <= 0) break;
        n += got, input[n] = 0;
        char *end = memmem(input, n, "\r\n\r\n", 4);
        if (!end) continue;
        char saved = end[4];
        end[4] = 0;
        char *head = strdup(input);
        end[4] = saved;
        int is_over = serve_one(&peer, head, end + 4, input + n - (end + 4), kept);
        free(head);
        if (is_over) break;
        n = 0; /* nobody pipelines */
    }
#ifdef TLS
    if (peer.tls) SSL_free(peer.tls);
#endif
    close(peer.s), free(input), free(kept);
    return NULL;
}

struct door {
    int listening;
    void *context; /* of TLS; NULL: plain */
};

static struct door open_door(int port, void *context) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listening = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listening, (struct sockaddr *)&at, size) || listen(listening, 128)) perror("sink"), exit(1);
    getsockname(listening, (struct sockaddr *)&at, &size);
    printf("%d ", ntohs(at.sin_port));
    return (struct door){listening, context};
}

static void *welcome(void *given) {
    struct door *door = given;
    pthread_t thread;
    pthread_attr_t detached;
    pthread_attr_init(&detached), pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&detached, 512 << 10);
    for (;;) {
        struct peer *peer = calloc(1, sizeof *peer);
        if ((peer->s = accept(door->listening, NULL, NULL)) < 0) continue;
#ifdef TLS
        if (door->context) peer->tls = SSL_new(door->context), SSL_set_fd(peer->tls, peer->s);
#endif
        if (pthread_create(&thread, &detached, serve, peer)) close(peer->s);
    }
    return NULL;
}

static void *end_with_stdin(void *given) {
    char byte;
    while (read(0, &byte, 1) > 0) {}
    exit(0);
}

int main(int n, char **words) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78 : 0);
        crc_table[0][i] = crc;
    }
    for (int row = 1; row < 8; row++)
        for (int i = 0; i < 256; i++) crc_table[row][i] = crc_table[row - 1][i] >> 8 ^ crc_table[0][crc_table[row - 1][i] & 255];
    pattern_fd = memfd_create("pattern", 0);
    if (ftruncate(pattern_fd, PATTERN)) return 1;
    pattern = mmap(NULL, PATTERN, PROT_READ | PROT_WRITE, MAP_SHARED, pattern_fd, 0);
    uint64_t state = 88172645463325252ull; /* xorshift64, so that nothing can be compressed */
    for (size_t i = 0; i < PATTERN; i += 8) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        memcpy(pattern + i, &state, 8);
    }
    signal(SIGPIPE, SIG_IGN);
    struct door plain = open_door(n > 1 ? atoi(words[1]) : 0, NULL);
    pthread_t thread;
#ifdef TLS
    struct door secure;
    if (n > 3) {
        SSL_CTX *context = SSL_CTX_new(TLS_server_method());
        if (SSL_CTX_use_certificate_chain_file(context, words[2]) != 1 || SSL_CTX_use_PrivateKey_file(context, words[3], SSL_FILETYPE_PEM) != 1)
            return fprintf(stderr, "sink: no such certificate or key\n"), 1;
        secure = open_door(0, context);
        pthread_create(&thread, NULL, welcome, &secure);
    }
#endif
    printf("\n"), fflush(stdout);
    pthread_create(&thread, NULL, end_with_stdin, NULL);
    welcome(&plain);
}
