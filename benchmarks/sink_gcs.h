/* The JSON API of GCS, for sink.c: uploads in one request and in sessions, media, metadata, lists, compose, delete.

   Objects are those that S3's paths show, under /bucket/name. The sum of a large object is an echo, as there; that of a composed one
   is computed from those of its pieces. Names are taken as plain text: no quotes, no escapes. */

static uint32_t decode(const char *text) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint64_t bits = 0;
    for (int i = 0; i < 6 && text[i] && strchr(digits, text[i]); i++) bits |= (uint64_t)(strchr(digits, text[i]) - digits) << (42 - 6 * i);
    return bits >> 16;
}

/* The CRC of two pieces from theirs: `n` zero bytes after the first, by squaring the matrix of one zero bit (zlib's crc32_combine). */
static uint32_t times(const uint32_t *matrix, uint32_t vector) {
    uint32_t sum = 0;
    for (; vector; vector >>= 1, matrix++) sum ^= vector & 1 ? *matrix : 0;
    return sum;
}

static uint32_t combine(uint32_t first, uint32_t second, uint64_t n) {
    uint32_t now[32] = {0x82F63B78}, next[32];
    for (int i = 1; i < 32; i++) now[i] = 1u << (i - 1);
    for (n *= 8; n; n >>= 1) {
        if (n & 1) first = times(now, first);
        for (int i = 0; i < 32; i++) next[i] = times(now, now[i]);
        memcpy(now, next, sizeof now);
    }
    return first ^ second;
}

static void unescape(char *text, char plus) {
    char *to = text;
    for (; *text; text++, to++)
        if (*text == '%' && isxdigit(text[1]) && isxdigit(text[2])) {
            char hex[3] = {text[1], text[2]};
            *to = strtol(hex, NULL, 16), text += 2;
        } else
            *to = *text == '+' ? plus : *text;
    *to = 0;
}

/* The text, or the flat object, of a member of a JSON object. */
static char *member(const char *json, const char *name, char *value, size_t room) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", name);
    const char *at = strstr(json, quoted), *end;
    if (!at) return NULL;
    at += strlen(quoted) + strspn(at + strlen(quoted), ": \n");
    if (!(end = *at == '{' ? strchr(at, '}') + 1 : *at == '"' ? strchr(++at, '"') : at + strcspn(at, ",} \n"))) return NULL;
    snprintf(value, room, "%.*s", (int)(end - at), at);
    return value;
}

static char *parameter(const char *query, const char *name, char *value, size_t room) {
    size_t n = strlen(name);
    for (const char *at = query; at && *at; at = strchr(at, '&') ? strchr(at, '&') + 1 : NULL)
        if (!strncmp(at, name, n) && at[n] == '=') {
            snprintf(value, room, "%.*s", (int)strcspn(at + n + 1, "&"), at + n + 1);
            unescape(value, ' ');
            return value;
        }
    return NULL;
}

static int tell(char *text, size_t room, const struct object *found) {
    const char *name = strchr(found->key + 1, '/') + 1;
    int n = snprintf(text, room,
                     "{\"kind\":\"storage#object\",\"bucket\":\"%.*s\",\"name\":\"%s\",\"generation\":\"%lu\",\"metageneration\":\"1\","
                     "\"size\":\"%lu\",\"etag\":\"%lu\",\"contentType\":\"application/octet-stream\","
                     "\"updated\":\"2026-11-22T00:00:00.000Z\",\"timeCreated\":\"2026-11-22T00:00:00.000Z\"",
                     (int)(name - found->key - 2), found->key + 1, name, found->generation, found->size, found->generation);
    if (found->has_crc) n += snprintf(text + n, room - n, ",\"crc32c\":\"%s\"", found->crc);
    return n + snprintf(text + n, room - n, "%s%s}", found->json ? ",\"metadata\":" : "", found->json ? found->json : "");
}

static int answer_json(struct peer *peer, const struct object *found) {
    char text[HEAD / 2];
    tell(text, sizeof text, found);
    return answer(peer, "200 OK", "Content-Type: application/json\r\n", text);
}

static int refuse_json(struct peer *peer, const char *status) {
    char text[128];
    snprintf(text, sizeof text, "{\"error\":{\"code\":%.3s,\"message\":\"says the sink\"}}", status);
    return answer(peer, status, "Content-Type: application/json\r\n", text);
}

/* Make an object as its description says, of a body that is in `body`, or was dropped (NULL). */
static int make(struct peer *peer, const char *bucket, const char *name, const char *json, const char *query, const uint8_t *body, uint64_t size) {
    char key[4096], given[64], real[16], more[8192], condition[32];
    snprintf(key, sizeof key, "/%s/%s", bucket, name);
    encode(body ? crc32c(0, body, size) : 0, real);
    int has_crc = member(json, "crc32c", given, sizeof given) != NULL;
    if (has_crc && body && strcmp(given, real)) return refuse_json(peer, "400 Bad Request");
    pthread_mutex_lock(&lock);
    if (parameter(query, "ifGenerationMatch", condition, sizeof condition) && !strcmp(condition, "0") && *place(key)) {
        pthread_mutex_unlock(&lock);
        return refuse_json(peer, "412 Precondition Failed");
    }
    struct object *made = put(key), copy;
    made->size = size, made->has_crc = has_crc || body;
    strcpy(made->crc, has_crc ? given : real);
    if (body) made->body = memcpy(malloc(size + 1), body, size);
    if (member(json, "metadata", more, sizeof more)) made->json = strdup(more);
    copy = *made, copy.json = NULL;
    pthread_mutex_unlock(&lock);
    return answer_json(peer, &copy);
}

/* multipart/related: a description, then the body (RFC 2387). Takes all of it. */
static int make_of_parts(struct peer *peer, const char *bucket, const char *head, const char *query, uint64_t size, const char *begun, size_t n_begun, uint8_t *kept) {
    char type[512], mark[256], name[4096], *media = NULL;
    char *boundary = field(head, "Content-Type", type, sizeof type) ? strstr(type, "boundary=") : NULL;
    if (!boundary) return refuse_json(peer, "400 Bad Request");
    boundary += 9, boundary += *boundary == '"' || *boundary == '\'';
    int n_mark = snprintf(mark, sizeof mark, "--%.*s", (int)strcspn(boundary, "\"'; "), boundary);
    uint64_t got = MIN(n_begun, size), left, n_break = 1;
    memcpy(kept, begun, got);
    for (;;) { /* until both heads are there */
        kept[got] = 0;
        char *second = memmem(kept + 1, got ? got - 1 : 0, mark, n_mark);
        char *blank = second ? strstr(second, "\n\n") : NULL, *wide = second ? strstr(second, "\r\n\r\n") : NULL;
        if (wide && (!blank || wide < blank)) media = wide + 4, n_break = 2;
        else if (blank) media = blank + 2;
        if (media || got == size || got == SMALL) break;
        ssize_t n = pull(peer, kept + got, MIN(SMALL, size) - got);
        if (n <= 0) return -1;
        got += n;
    }
    if (!media) return refuse_json(peer, "400 Bad Request");
    uint64_t begins = (uint8_t *)media - kept, in_tail = 0;
    char tail[513], json[HEAD];
    snprintf(json, sizeof json, "%.*s", (int)MIN(begins, sizeof json - 1), (char *)kept);
    if (!member(json, "name", name, sizeof name) && !parameter(query, "name", name, sizeof name)) return refuse_json(peer, "400 Bad Request");
    int is_kept = size <= SMALL;
    for (left = size - got; left; ) {
        int drops = !is_kept && left > sizeof tail - 1;
        ssize_t n = drops ? pull(peer, NULL, left - (sizeof tail - 1)) : is_kept ? pull(peer, kept + got, left) : pull(peer, tail + in_tail, left);
        if (n <= 0) return -1;
        left -= n, got += is_kept ? n : 0, in_tail += drops || is_kept ? 0 : n;
    }
    __atomic_add_fetch(&n_received, size, __ATOMIC_RELAXED);
    /* What closes the body: a line break, the mark, two dashes, and a line break or none. */
    char *from = is_kept ? media : tail, *end = is_kept ? (char *)kept + size : tail + in_tail, *close = NULL;
    for (char *at = from; (at = memmem(at, end - at, mark, n_mark)); at++) close = at;
    if (!close) return refuse_json(peer, "400 Bad Request");
    uint64_t n_media = size - begins - (end - close) - n_break;
    return make(peer, bucket, name, json, query, is_kept ? (uint8_t *)media : NULL, n_media);
}

static int begin_session(struct peer *peer, const char *bucket, const char *head, const char *query, const char *json) {
    char name[4096], id[32], host[256], headers[512];
    if (!parameter(query, "name", name, sizeof name) && !member(json, "name", name, sizeof name)) return refuse_json(peer, "400 Bad Request");
    pthread_mutex_lock(&lock);
    sprintf(id, "?%lu", ++n_ids);
    struct object *made = put(id);
    made->json = strdup(json);
    free(made->metadata), made->metadata = strdup(name);
    pthread_mutex_unlock(&lock);
    snprintf(headers, sizeof headers, "Location: http://%s/upload/storage/v1/b/%s/o?uploadType=resumable&upload_id=%s\r\n",
             field(head, "Host", host, sizeof host) ? host : "localhost", bucket, id + 1);
    return answer(peer, "200 OK", headers, "");
}

/* One piece of a session, taken already; `body`: the whole object, where it is small and came at once. */
static int go_on(struct peer *peer, const char *bucket, const char *head, const char *query, const uint8_t *body, uint64_t size) {
    char id[32] = "?", range[128], name[4096], json[8192], headers[64];
    uint64_t start = 0, end = 0, total = 0;
    if (!parameter(query, "upload_id", id + 1, sizeof id - 1)) return refuse_json(peer, "400 Bad Request");
    pthread_mutex_lock(&lock);
    struct object *session = *place(id);
    int is_last = 0;
    if (session) {
        session->size += size;
        snprintf(name, sizeof name, "%s", session->metadata), snprintf(json, sizeof json, "%s", session->json);
        int n = field(head, "Content-Range", range, sizeof range) ? sscanf(range, "bytes %lu-%lu/%lu", &start, &end, &total) : 0;
        if (n < 3) sscanf(range, "bytes */%lu", &total);
        is_last = !field(head, "Content-Range", range, sizeof range) || (strchr(range, '/')[1] != '*' && session->size >= total);
        size = session->size;
        if (is_last) forget(place(id));
    }
    pthread_mutex_unlock(&lock);
    if (!session) return refuse_json(peer, "404 Not Found");
    if (is_last) return make(peer, bucket, name, json, query, start ? NULL : body, size);
    sprintf(headers, "Range: bytes=0-%lu\r\n", size - 1);
    return answer(peer, "308 Resume Incomplete", size ? headers : "", "");
}

static int compose(struct peer *peer, const char *key, const char *query, const char *json) {
    char name[4096], source[8192], destination[8192], condition[32];
    uint64_t size = 0;
    uint32_t crc = 0;
    int has_crc = 1, is_missing = 0;
    const char *at = strstr(json, "\"sourceObjects\""), *bucket_end = strchr(key + 1, '/');
    const char *end = at ? strchr(at, ']') : NULL, *rest = strstr(json, "\"destination\"");
    pthread_mutex_lock(&lock);
    while (end && (at = strstr(at, "\"name\"")) && at < end) {
        if (!member(at, "name", name, sizeof name)) break;
        snprintf(source, sizeof source, "%.*s/%s", (int)(bucket_end - key), key, name);
        struct object *piece = find(source);
        if (!piece) is_missing = 1;
        else crc = combine(crc, decode(piece->crc), piece->size), size += piece->size, has_crc &= piece->has_crc;
        at += 6;
    }
    int is_refused = parameter(query, "ifGenerationMatch", condition, sizeof condition) && !strcmp(condition, "0") && *place(key);
    struct object copy = {0};
    if (!is_missing && !is_refused) {
        struct object *made = put(key);
        made->size = size, made->has_crc = has_crc;
        encode(crc, made->crc);
        if (rest && member(rest, "metadata", destination, sizeof destination)) made->json = strdup(destination);
        copy = *made, copy.json = NULL;
    }
    pthread_mutex_unlock(&lock);
    return is_missing ? refuse_json(peer, "404 Not Found") : is_refused ? refuse_json(peer, "412 Precondition Failed") : answer_json(peer, &copy);
}

static int list(struct peer *peer, const char *bucket, const char *query) {
    char start[4096] = "", key[4200], *text = malloc(4 << 20);
    parameter(query, "prefix", start, sizeof start);
    size_t n = sprintf(text, "{\"kind\":\"storage#objects\",\"items\":["), n_key = snprintf(key, sizeof key, "/%s/%s", bucket, start);
    int n_items = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct object *at = table[i]; at && n < (4 << 20) - HEAD; at = at->next)
            if (!strncmp(at->key, key, n_key)) text[n] = ',', n += !!n_items++, n += tell(text + n, HEAD / 2, at);
    pthread_mutex_unlock(&lock);
    strcpy(text + n, "]}");
    char head[128];
    sprintf(head, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", n + 2);
    int result = say(peer, head, strlen(head), MSG_MORE) || say(peer, text, n + 2, 0) ? -1 : 0;
    free(text);
    return result;
}

/* A request of the JSON API; its body is taken here. */
static int serve_gcs(struct peer *peer, const char *method, char *path, const char *query, const char *head, uint64_t size, const char *begun, size_t n_begun, uint8_t *kept) {
    char bucket[256], key[4096] = "", type[32] = "", text[32];
    int is_upload = !strncmp(path, "/upload/", 8);
    char *at = strstr(path, "/b/"), *name = at ? strstr(at, "/o") : NULL;
    if (!at) return -1;
    snprintf(bucket, sizeof bucket, "%.*s", (int)strcspn(at + 3, "/"), at + 3);
    parameter(query, "uploadType", type, sizeof type);
    if (is_upload && !strcmp(type, "multipart")) return make_of_parts(peer, bucket, head, query, size, begun, n_begun, kept);
    if (take(peer, size, begun, n_begun, kept)) return -1;
    const uint8_t *body = size <= SMALL ? kept : NULL;
    if (body) kept[size] = 0;
    const char *json = body && size ? (char *)kept : "{}";
    if (is_upload && parameter(query, "upload_id", text, sizeof text)) return go_on(peer, bucket, head, query, body, size);
    if (is_upload && !strcmp(type, "resumable")) return begin_session(peer, bucket, head, query, json);
    if (is_upload) return parameter(query, "name", key, sizeof key) ? make(peer, bucket, key, "{}", query, body, size) : refuse_json(peer, "400 Bad Request");
    if (!name) return answer(peer, "200 OK", "Content-Type: application/json\r\n", "{\"kind\":\"storage#bucket\",\"location\":\"US\"}");
    if (!name[2]) return list(peer, bucket, query);
    int is_compose = !strcmp(method, "POST") && strlen(name) > 8 && !strcmp(name + strlen(name) - 8, "/compose");
    snprintf(key, sizeof key, "/%s/%.*s", bucket, (int)(strlen(name + 3) - 8 * is_compose), name + 3);
    unescape(key, '+');
    if (is_compose) return compose(peer, key, query, json);
    pthread_mutex_lock(&lock);
    struct object **there = place(key), *found = NULL, copy;
    int is_there = *there != NULL;
    if (!strcmp(method, "DELETE")) {
        if (is_there) forget(there);
    } else if ((found = find(key))) {
        copy = *found, copy.metadata = strdup(""), copy.json = found->json ? strdup(found->json) : NULL;
        if (found->body) copy.body = memcpy(malloc(found->size + 1), found->body, found->size);
    }
    pthread_mutex_unlock(&lock);
    if (!strcmp(method, "DELETE")) return is_there ? say(peer, "HTTP/1.1 204 No Content\r\n\r\n", 27, 0) : refuse_json(peer, "404 Not Found");
    if (!found) return refuse_json(peer, "404 Not Found");
    copy.key = key;
    int result = parameter(query, "alt", text, sizeof text) && !strcmp(text, "media") ? describe(peer, &copy, head, 1) : answer_json(peer, &copy);
    free(copy.metadata), free(copy.json), free(copy.body);
    return result;
}
