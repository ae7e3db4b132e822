package deadletter

import "gorm.io/gorm"

// parcel is a letter on its way to its guard and its broker.
type parcel struct {
	Letter
	damage error // why its row cannot be read
}

// batchBytes bounds the letters of a batch.
const batchBytes = 4 << 20

// batch reads letters, in the order of their ids: at most limit, and no more once they have batchBytes.
func batch(db *gorm.DB, limit int, conditions ...condition) ([]parcel, error) {
	ids, err := load(db, "lapse_dead_letters", limit, conditions...)
	if err != nil {
		return nil, err
	}
	return parcels(db, ids)
}

// parcels reads the letters with these ids.
func parcels(db *gorm.DB, ids []int64) ([]parcel, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := db.Raw(`SELECT id, message_id, kind, subject, exchange, routing_key, properties, headers, body, died_at
		FROM lapse_dead_letters WHERE id IN ? ORDER BY id`, ids).Rows()
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	letters := make([]parcel, 0, len(ids))
	for rows.Next() {
		var r row
		err := rows.Scan(&r.ID, &r.MessageID, &r.Kind, &r.Subject, &r.Exchange, &r.RoutingKey, &r.Properties, &r.Headers, &r.Body, &r.DiedAt)
		if err != nil {
			return nil, err
		}
		letter, damage := r.letter()
		letter.ID = r.ID
		letters = append(letters, parcel{letter, damage})
	}
	return letters, rows.Err()
}

// load is the ids of as many letters as a batch takes.
func load(db *gorm.DB, table string, limit int, conditions ...condition) (ids []int64, err error) {
	sql, args := where(conditions...)
	rows, err := db.Raw("SELECT id, size + LENGTH(headers) FROM "+table+" WHERE "+sql+" ORDER BY id LIMIT ?", append(args, limit)...).Rows()
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for bytes := int64(0); rows.Next() && (len(ids) == 0 || bytes < batchBytes); {
		var id, size int64
		if err := rows.Scan(&id, &size); err != nil {
			return nil, err
		}
		ids, bytes = append(ids, id), bytes+size
	}
	return ids, rows.Err()
}
